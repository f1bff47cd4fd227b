"""Cached decoding against one row at a time without a cache, and sampling that belongs to the episode."""

import numpy as np
import pytest
import torch
from toy import make_model, make_tokenizer
from transformers import GenerationConfig

from progpo_trl.generation import CachedGeneration, Sampling, episode_stream

GREEDY = Sampling(temperature=0.0)


def session(model, tokenizer, sampling=GREEDY, eos=()):
    return CachedGeneration(
        model, eos_token_ids=[tokenizer.eos_token_id, *eos], pad_token_id=tokenizer.pad_token_id, sampling=sampling
    )


def alone(model, tokenizer, context, eos, n):
    """What `generate` gives for one row, no padding, no cache from before."""
    config = GenerationConfig(
        do_sample=False, pad_token_id=tokenizer.pad_token_id, eos_token_id=[tokenizer.eos_token_id, *eos]
    )
    ids = torch.tensor(np.asarray(context, np.int64))[None]
    with torch.no_grad():
        out = model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config, max_new_tokens=n)
    return out[0, ids.size(1) :].tolist()


def play(model, tokenizer, seed, turns=6, rows=6, corrupt=False, shorten=False):
    """Random conversations in lock-step; returns (mismatches, turns compared, the session)."""
    rng = np.random.default_rng(seed)
    eos = list(range(11, 21)) + list(range(30, 60))  # likely enough that rows stop at different lengths
    generation = session(model, tokenizer, eos=eos)
    contexts = {k: rng.integers(60, 400, rng.integers(5, 40)).astype(np.int32) for k in range(rows)}
    wrong = compared = 0
    for _ in range(turns):
        keys = list(contexts)
        if corrupt and generation._mask is not None:
            generation._mask = torch.ones_like(generation._mask)
        for key, out in zip(keys, generation.turn(keys, [contexts[k] for k in keys], 12), strict=True):
            want = alone(model, tokenizer, contexts[key], eos, 12)
            compared += 1
            wrong += out.ids.tolist() != want
            assert out.truncated == (out.ids[-1] not in [tokenizer.eos_token_id, *eos])
            delta = rng.integers(60, 400, rng.integers(1, 30)).astype(np.int32)
            contexts[key] = np.concatenate([contexts[key], out.ids, delta])
        contexts = {k: c for k, c in contexts.items() if rng.random() > 0.15}
        if shorten and contexts:
            first = next(iter(contexts))
            contexts[first] = contexts[first][3:]  # no longer extends what is cached
        if not contexts:
            break
    return wrong, compared, generation


@pytest.fixture(scope="module")
def tokenizer():
    return make_tokenizer()


@pytest.mark.parametrize("seed", range(4))
def test_greedy_equals_one_row_without_cache(tokenizer, seed):
    wrong, compared, generation = play(make_model(tokenizer, seed).eval(), tokenizer, seed)
    assert compared > 10
    assert wrong == 0
    assert generation.reused_turns >= 2


SLIDING = {"use_sliding_window": True, "sliding_window": 24, "max_window_layers": 0}


@pytest.mark.parametrize("overrides", [SLIDING, {**SLIDING, "max_window_layers": 1}])
def test_a_sliding_window_counts_tokens_not_holes(tokenizer, overrides):
    """Its masks count columns of the cache: contexts are encoded anew, and equal a row of its own."""
    wrong, compared, generation = play(make_model(tokenizer, 2, **overrides).eval(), tokenizer, 2)
    assert compared > 10
    assert wrong == 0
    assert generation.reused_turns == 0
    contexts = [np.r_[np.arange(60, 100), tail].astype(np.int32) for tail in ([7, 9], [8] * 20, [7, 9])]
    model = make_model(tokenizer, 3, **overrides).eval()
    for context, out in zip(contexts, session(model, tokenizer).turn([0, 1, 2], contexts, 8), strict=True):
        assert out.ids.tolist() == alone(model, tokenizer, context, [], 8)


def test_recurrent_layers_are_encoded_anew(tokenizer):
    transformers = pytest.importorskip("transformers")
    if not hasattr(transformers, "Lfm2Config"):
        pytest.skip("this transformers has no LFM2")
    config = transformers.Lfm2Config(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, layer_types=["conv", "full_attention"], eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id, bos_token_id=None,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.Lfm2ForCausalLM(config).eval()
    generation = session(model, tokenizer)
    contexts = {k: np.arange(60, 90 + 7 * k, dtype=np.int32) for k in range(3)}
    for _ in range(2):
        outs = generation.turn(list(contexts), list(contexts.values()), 4)
        contexts = {k: np.concatenate([c, out.ids, [70]]) for (k, c), out in zip(contexts.items(), outs, strict=True)}
    assert generation.reused_turns == 0


def test_unmasked_holes_would_be_noticed(tokenizer):
    wrong, _, _ = play(make_model(tokenizer, 0).eval(), tokenizer, 0, corrupt=True)
    assert wrong > 0


def test_contexts_that_stop_extending_rebuild(tokenizer):
    wrong, _, generation = play(make_model(tokenizer, 1).eval(), tokenizer, 1, shorten=True)
    assert wrong == 0
    assert generation.rebuilt_turns > 1


def test_equal_prompts_and_a_common_beginning_are_encoded_once(tokenizer):
    rng = np.random.default_rng(3)
    model = make_model(tokenizer, 2).eval()
    head = rng.integers(60, 400, 40)
    tails = [rng.integers(60, 400, n) for n in (12, 3, 30)]
    distinct = [np.concatenate([head, tail]).astype(np.int32) for tail in tails]
    order = [0, 1, 0, 2, 1, 0]
    generation = session(model, tokenizer, eos=range(11, 21))
    contexts = [distinct[i] for i in order]
    first = generation.turn(list(range(6)), contexts, 12)
    assert generation.encoded_tokens == 40 + 12 + 3 + 30
    for i, out in zip(order, first, strict=True):
        assert out.ids.tolist() == alone(model, tokenizer, distinct[i], range(11, 21), 12)
    # Copies of a row go their own ways from here on.
    later = [
        np.concatenate([c, out.ids, rng.integers(60, 400, 3 + k)])
        for k, (c, out) in enumerate(zip(contexts, first, strict=True))
    ]
    for context, out in zip(later, generation.turn(list(range(6)), later, 12), strict=True):
        assert out.ids.tolist() == alone(model, tokenizer, context, range(11, 21), 12)
    assert generation.reused_turns == 1


@pytest.mark.parametrize("rows", [[[5] * 30, [5] * 20], [[5] * 30] * 3, [[5] * 17 + [6], [5] * 17 + [7]], [[5], [6]]])
def test_a_prompt_may_be_the_beginning_of_another(tokenizer, rows):
    model = make_model(tokenizer).eval()
    contexts = [np.array(row, np.int32) for row in rows]
    outs = session(model, tokenizer).turn(list(range(len(rows))), contexts, 6)
    for context, out in zip(contexts, outs, strict=True):
        assert out.ids.tolist() == alone(model, tokenizer, context, [], 6)


def test_the_cache_saves_encoding(tokenizer):
    model = make_model(tokenizer).eval()
    generation, context = session(model, tokenizer), np.arange(60, 160, dtype=np.int32)
    for _ in range(5):
        (out,) = generation.turn([0], [context], 4)
        context = np.concatenate([context, out.ids, np.arange(70, 75, dtype=np.int32)])
    assert generation.rebuilt_turns == 1
    # 100 for the first prompt, then the last sampled id and the 5 new ones of each later turn
    assert generation.encoded_tokens == 100 + 4 * 6


def test_an_episode_samples_the_same_alone_and_in_company(tokenizer):
    model = make_model(tokenizer).eval()
    contexts = [np.arange(60 + i, 80 + 3 * i, dtype=np.int32) for i in range(5)]

    def run(which, order):
        generation = session(model, tokenizer, Sampling(1.0))
        streams = {k: episode_stream(1, 2, f"task {k}", k) for k in which}
        keys = [k for k in order if k in which]
        outs = generation.turn(keys, [contexts[k] for k in keys], 10, [streams[k] for k in keys])
        return dict(zip(keys, outs, strict=True))

    together = run(range(5), [3, 1, 4, 0, 2])
    for k in range(5):
        got = run([k], [k])[k]
        assert got.ids.tolist() == together[k].ids.tolist()
        np.testing.assert_allclose(got.logprobs, together[k].logprobs, atol=1e-5)


def test_streams_differ_by_every_part_of_their_name():
    base = (0, 0, "a", 0, 0)
    variants = [base, (1, 0, "a", 0, 0), (0, 1, "a", 0, 0), (0, 0, "b", 0, 0), (0, 0, "a", 1, 0), (0, 0, "a", 0, 1)]
    draws = {tuple(episode_stream(*v).random(4)) for v in variants}
    assert len(draws) == len(variants)
    assert episode_stream(*base).random() == episode_stream(*base).random()


@pytest.mark.parametrize(
    "sampling",
    [Sampling(1.0), Sampling(0.7), Sampling(1.0, top_k=5), Sampling(1.0, top_p=0.5), Sampling(1.3, min_p=0.3)],
)
def test_sampling_follows_the_distribution(tokenizer, sampling):
    """Frequencies of 20,000 draws against the filtered softmax; nothing outside the filter is ever drawn."""
    generation = session(make_model(tokenizer).eval(), tokenizer, sampling)
    logits = torch.randn(1, 12, generator=torch.Generator().manual_seed(5)) * 2
    expected = sampling.processors()(None, logits / sampling.temperature).softmax(-1)[0]
    n = 20_000
    uniform = torch.from_numpy(np.random.default_rng(0).random(n))
    tokens, logprobs = generation._draw(logits.expand(n, -1), uniform)
    counts = torch.bincount(tokens, minlength=12) / n
    assert (counts - expected).abs().max() < 0.015
    assert not counts[expected == 0].any()
    torch.testing.assert_close(logprobs, expected.log()[tokens], atol=1e-5, rtol=1e-5)


def test_extreme_uniforms_stay_inside_the_support(tokenizer):
    generation = session(make_model(tokenizer).eval(), tokenizer, Sampling(1.0, top_k=2))
    logits = torch.tensor([[-50.0, 3.0, 2.0, -60.0]]).expand(2, -1)
    tokens, _ = generation._draw(logits, torch.tensor([0.0, 1 - 2**-53], dtype=torch.float64))
    assert tokens.tolist() == [1, 2]


def test_no_episodes_is_no_work(tokenizer):
    assert session(make_model(tokenizer).eval(), tokenizer).turn([], [], 5) == []
