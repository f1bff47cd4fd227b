"""Tokens per CPU second of rollouts: our cached decoding against transformers' `generate`, side by side.

    python benchmarks/generation.py [--repeats 5] [--check]

Full context: 16 conversations of 8 turns, observations of about 150 tokens, 24 new tokens a turn, greedy, against
`generate` on the whole conversation every turn; both must give the same tokens. Window: a group of 8 plays episodes
of real lengths (data/alfworld_lengths.json: steps and prompt tokens of recorded games), against stock lock-step,
`generate` on a batch in which every episode stays until the last one ends (as published trainers do it), and against
`generate` on the episodes still alive alone. Random weights and random ids of a Qwen2.5-shaped model: contents do not
matter to the clock. Repeats alternate between the sides; ratios are medians of CPU time.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import time
from pathlib import Path

import numpy as np
import torch
import transformers

from progpo_trl.generation import CachedGeneration, Sampling, episode_stream

LENGTHS = Path(__file__).parent / "data" / "alfworld_lengths.json"
FULL, WINDOW = 2.5, 1.3  # what --check demands
PAD, EOS = 0, 1


def make_model(hidden: int, layers: int, vocabulary: int):
    torch.manual_seed(0)
    config = transformers.Qwen2Config(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=hidden * 4,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        num_key_value_heads=max(1, hidden // 256),
        max_position_embeddings=8192,
        tie_word_embeddings=True,
        initializer_range=0.1,  # far from uniform, so that the greedy choice is not a matter of rounding
        bos_token_id=None,
        eos_token_id=EOS,
        pad_token_id=PAD,
    )
    return transformers.Qwen2ForCausalLM(config).eval()


class Ours:
    """The package's cached decoding; `sampling` as in training."""

    def __init__(self, model, sampling: Sampling, eos: list[int]):
        self.session = CachedGeneration(model, eos_token_ids=eos, pad_token_id=PAD, sampling=sampling)
        self.streams: dict[int, np.random.Generator] = {}

    def turn(self, keys, contexts, new_tokens):
        streams = [self.streams.setdefault(k, episode_stream(0, 0, str(k), k)) for k in keys]
        return [out.ids for out in self.session.turn(keys, contexts, new_tokens, streams)]


class Stock:
    """`generate` on left-padded prompts, as TRL's transformers backend calls it: no cache between turns."""

    def __init__(self, model, sampling: Sampling, eos: list[int]):
        self.model, self.eos = model, eos
        options = {"temperature": sampling.temperature} if sampling.temperature else {}
        self.config = transformers.GenerationConfig(
            do_sample=sampling.temperature > 0, top_k=0, eos_token_id=eos, pad_token_id=PAD, **options
        )

    @torch.no_grad()
    def turn(self, keys, contexts, new_tokens):
        width = max(map(len, contexts))
        ids = torch.full((len(contexts), width), PAD)
        mask = torch.zeros_like(ids)
        for i, c in enumerate(contexts):
            ids[i, width - len(c) :] = torch.from_numpy(np.asarray(c, np.int64))
            mask[i, width - len(c) :] = 1
        out = self.model.generate(ids, attention_mask=mask, generation_config=self.config, max_new_tokens=new_tokens)[
            :, width:
        ].numpy()
        ended = np.isin(out, self.eos)
        counts = np.where(ended.any(1), ended.argmax(1) + 1, out.shape[1])
        return [row[:n].astype(np.int32) for row, n in zip(out, counts, strict=True)]


def full_context(backend, turns: int, new_tokens: int, vocabulary: int, episodes: int = 16) -> list[np.ndarray]:
    """Conversations of equal length; returns every sampled turn."""
    rng = np.random.default_rng(0)
    contexts = [np.zeros(0, np.int64)] * episodes
    said = []
    for _ in range(turns):
        observations = [rng.integers(2, vocabulary, int(rng.integers(120, 181))) for _ in contexts]
        contexts = [np.concatenate([c, o]) for c, o in zip(contexts, observations, strict=True)]
        out = backend.turn(list(range(episodes)), contexts, new_tokens)
        contexts = [np.concatenate([c, ids]) for c, ids in zip(contexts, out, strict=True)]
        said += out
    return said


def window(
    backend, prompts: list[list[int]], head: np.ndarray, new_tokens: int, vocabulary: int, keep_finished: bool = False
) -> list[np.ndarray]:
    """Episodes whose steps have prompts of these lengths, all beginning with `head`; returns the turns that count.

    At the first step all members of the group see the same. keep_finished: an episode that is over repeats its last
    prompt, and its answer is thrown away.
    """
    said = []
    for step in range(max(map(len, prompts))):
        live = [i for i, lengths in enumerate(prompts) if step < len(lengths)]
        batch = list(range(len(prompts))) if keep_finished else live
        contexts = []
        for i in batch:
            seed, length = ((step, i), prompts[i][min(step, len(prompts[i]) - 1)]) if step else ((0, 0), prompts[0][0])
            tail = np.random.default_rng(seed).integers(2, vocabulary, length)
            contexts.append(np.concatenate([head, tail[len(head) :]]))
        out = backend.turn(batch, contexts, new_tokens)
        said += [ids for i, ids in zip(batch, out, strict=True) if i in live]
    return said


def compare(
    name: str, plays: dict, model, sampling: Sampling, eos: list[int], repeats: int
) -> tuple[dict[str, float], bool]:
    """Print a line for each stock side; returns our ratio to each, and whether all sampled the same.

    plays: side -> function of a backend; "ours" is measured against each of the others.
    """
    rates: dict[str, list[float]] = {side: [] for side in plays}
    said = {}
    for repeat in range(repeats + 1):
        for side, play in plays.items():
            backend = (Ours if side == "ours" else Stock)(model, sampling, eos)
            started = time.process_time()
            said[side] = play(backend)
            spent = time.process_time() - started
            if repeat:  # the first round warms up
                rates[side].append(sum(map(len, said[side])) / spent)
    ratios = {}
    for side in plays:
        if side == "ours":
            continue
        ratios[side] = statistics.median(a / b for a, b in zip(rates["ours"], rates[side], strict=True))
        ours, stock = statistics.median(rates["ours"]), statistics.median(rates[side])
        print(f"{name + ', ' + side:60} {ours:7.0f} {stock:7.0f} {ratios[side]:6.2f}", flush=True)
    equal = all(np.array_equal(a, b) for side in plays for a, b in zip(said["ours"], said[side], strict=True))
    return ratios, equal


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5, help="rounds after one that warms up (default: 5)")
    parser.add_argument("--threads", type=int, default=1, help="torch threads (default: 1)")
    parser.add_argument("--hidden", type=int, default=256, help="hidden size, full context (default: 256)")
    parser.add_argument("--window-hidden", type=int, default=128, help="hidden size, window context (default: 128)")
    parser.add_argument("--layers", type=int, default=8, help="layers of both models (default: 8)")
    parser.add_argument("--turns", type=int, default=8, help="turns of a full-context conversation (default: 8)")
    parser.add_argument("--episodes", type=int, default=8, help="episodes of the window rollout (default: 8)")
    parser.add_argument("--check", action="store_true", help="exit 1 where a ratio is below its target")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    transformers.logging.set_verbosity_error()
    vocabulary = 2048
    big, small = (make_model(h, options.layers, vocabulary) for h in (options.hidden, options.window_hidden))
    sizes = [sum(p.numel() for p in model.parameters()) / 1e6 for model in (big, small)]
    print(f"full context: {sizes[0]:.1f}M parameters, window: {sizes[1]:.1f}M; float32, {options.threads} thread(s)")
    print(f"torch {torch.__version__}, transformers {transformers.__version__}, {platform.machine()}; medians of")
    print(f"{options.repeats} rounds\n\n{'tokens per CPU second':60} {'ours':>7} {'stock':>7} {'ratio':>6}")
    full, equal = compare(
        f"full context, 16 x {options.turns} turns x 24 tokens",
        {side: lambda b: full_context(b, options.turns, 24, vocabulary) for side in ("ours", "re-encoding")},
        big, Sampling(temperature=0.0), [EOS], options.repeats,
    )  # fmt: skip
    lengths = json.loads(LENGTHS.read_text())["prompt_tokens"]
    picked = [lengths[i * 7 % len(lengths)] for i in range(options.episodes)]
    # The chat template's system message and the template's first sentence, in Qwen2.5's tokens.
    head = np.random.default_rng(9).integers(2, vocabulary, 36)
    # About one token in 40 ends a turn: responses of 40 tokens on average, cut at 96.
    eos = list(range(1, 1 + vocabulary // 40))
    lockstep, _ = compare(
        f"window, {len(picked)} episodes, {sum(map(len, picked))} steps",
        {
            "ours": lambda b: window(b, picked, head, 96, vocabulary),
            "lock-step": lambda b: window(b, picked, head, 96, vocabulary, keep_finished=True),
            "live episodes only": lambda b: window(b, picked, head, 96, vocabulary),
        },
        small, Sampling(temperature=1.0), eos, options.repeats,
    )  # fmt: skip
    print(f"greedy output in full context: {'identical' if equal else 'DIFFERENT'}")
    if options.check:
        missed = [*["full context"] * (full["re-encoding"] < FULL), *["window"] * (lockstep["lock-step"] < WINDOW)]
        if missed or not equal:
            sys.exit(f"below target: {', '.join(missed) or 'greedy output differs'} (full {FULL}, window {WINDOW})")
        print(f"targets met: full context >= {FULL}, window >= {WINDOW}, greedy output identical")


if __name__ == "__main__":
    main()
