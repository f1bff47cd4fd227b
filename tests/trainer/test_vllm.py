"""Generation with vLLM through TRL's real client and protocol, against a server and an engine that answer by echo."""

import json
import threading

import numpy as np
import pytest
import toy
import vllm_run
from exactness import launch
from peft import LoraConfig
from vllm_stand_in import PolicyAnswers, StandIn
from vllm_trainers import SCHEDULES, installer, make, play, wrong_answers

from progpo_trl import MultiTurnGRPOTrainer
from progpo_trl.vllm_requests import request_seed

# ------------------------------------------------------------------------------------------------- two processes


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The same uneven episodes and training on one process and on two; ((one, ranks), servers of the two ranks)."""
    end = toy.make_tokenizer().eos_token_id
    with pytest.MonkeyPatch.context() as patch, StandIn() as server:
        installer(patch)(server.url)
        out = tmp_path_factory.mktemp("one")
        one = {case: vllm_run.run(out, case, server.url, 1) for case in SCHEDULES}
        one["colocate"] = vllm_run.run(out, "colocate", "", 1)
    out = tmp_path_factory.mktemp("two")
    with StandIn() as lockstep, StandIn(update_seconds=0.3) as streaming:
        launch(2, "vllm_run.py", str(out), "2", lockstep.url, streaming.url)
    ranks = [json.loads((out / f"rank{i}.json").read_text()) for i in range(2)]
    return {"one": one, "ranks": ranks, "lockstep": lockstep, "streaming": streaming, "end": end}


@pytest.mark.distributed
@pytest.mark.slow
class TestTwoProcesses:
    """One process has a single episode alive when the other has 60 turns to go."""

    @pytest.mark.parametrize("case", list(vllm_run.CASES))
    @pytest.mark.parametrize("which", ["uneven", "trained"])
    def test_the_same_episodes_as_one_process_and_every_answer_its_own(self, runs, case, which):
        one = runs["one"][case][which]
        ranks = [rank[case] for rank in runs["ranks"]]
        assert [rank["world"] for rank in ranks] == [2, 2]
        two = sorted([e for rank in ranks for e in rank[which]])
        assert two == sorted(json.loads(json.dumps(one)))
        assert wrong_answers(two, runs["end"]) == []
        if which == "uneven":
            assert [[len(e[3]) for e in rank[which]] for rank in ranks] == [[1, 1, 1, 2], [60] * 4]

    @pytest.mark.parametrize("case", ["lockstep", "colocate"])
    def test_lockstep_calls_are_equal_on_all_ranks(self, runs, case):
        ranks = [rank[case] for rank in runs["ranks"]]
        assert ranks[0]["calls"] == ranks[1]["calls"]
        assert len(ranks[0]["calls"]) >= 60

    def test_every_prompt_of_a_turn_is_sent(self, runs):
        """No de-duplication: a turn's request holds both processes' prompts, one answer for each."""
        asked = [event["request"] for event in runs["lockstep"].of_kind("asked")]
        assert [len(r["prompt"]) for r in asked] == [2 * n for n in runs["ranks"][0]["lockstep"]["calls"]]
        assert {r["n"] for r in asked} == {1}

    def test_streaming_needs_no_calls_together(self, runs):
        assert [rank["streaming"]["calls"] for rank in runs["ranks"]] == [[], []]
        turns = sum(
            len(e[3]) for rank in runs["ranks"] for kind in ("uneven", "trained") for e in rank["streaming"][kind]
        )
        assert len(runs["streaming"].of_kind("asked")) == turns

    def test_nobody_asks_while_weights_arrive(self, runs):
        """TRL lets only the main process wait for a transfer; here each takes 0.3 s."""
        assert len(runs["streaming"].of_kind("finish_weight_update")) == 3
        assert not any(event["updating"] for event in runs["streaming"].of_kind("asked"))

    @pytest.mark.parametrize("rank", [0, 1])
    def test_a_sleeping_engine_wakes_once_a_rollout(self, runs, rank):
        calls = runs["ranks"][rank]["colocate"]["engine"]
        rollouts = " ".join(calls).split("sleep")
        assert rollouts[0] == rollouts[-1].strip() == ""  # asleep from construction on, and at the end
        assert len(rollouts) == 2 + 3
        for rollout in rollouts[1:-1]:
            assert rollout.split("generate")[0].strip() == "wake weights load reset wake kv_cache"
            assert set(rollout.split("kv_cache")[1].split()) == {"generate"}


def test_both_schedules_and_modes_play_the_same_episodes(install, tmp_path):
    played = []
    for case, options in vllm_run.CASES.items():
        with StandIn() as server:
            install(server.url)
            url = "" if case == "colocate" else server.url
            played.append(vllm_run.record(play(vllm_run.make(tmp_path, url, **options), ["0", "59", "3"])))
    assert played[0] == played[1] == played[2]
    assert [len(e[3]) for e in played[0]] == [1, 60, 4]


# ------------------------------------------------------------------------------------------------------ requests


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_limits_and_temperatures_reach_the_server_and_are_restored(install, tmp_path, schedule):
    with StandIn() as server:
        trainer = make(install, tmp_path, server, schedule, temperature=0.9, top_p=0.8, top_k=7, min_p=0.1)
        play(trainer)
        trainer.args.max_completion_length = 5
        trainer.evaluate_panel(["3"], temperature=0.3)
    first, last = (server.of_kind("asked")[i]["request"] for i in (0, -1))
    assert (first["max_tokens"], first["temperature"]) == (12, 0.9)
    assert (last["max_tokens"], last["temperature"]) == (5, 0.3)
    for request in (first, last):
        sent = [request[name] for name in ("top_p", "top_k", "min_p", "repetition_penalty", "logprobs", "n")]
        assert sent == [0.8, 7, 0.1, 1.0, 0, 1]
        assert request["stop_token_ids"] == trainer.eos_token_ids
    engine = trainer.vllm_generation
    assert (engine.max_completion_length, engine.temperature, engine.generation_kwargs) == (12, 0.9, {})


def test_streaming_requests_are_seeded(install, tmp_path):
    """The same episodes whatever else is played and how many requests run at once; other seeds give others."""

    def responses(concurrent, order, seed=1, step=0):
        with StandIn(seeded=True) as server:
            trainer = make(install, tmp_path, server, "streaming", max_concurrent_requests=concurrent)
            episodes = [trainer._new_episode("3", i, 0) for i in order]
            trainer.play_episodes(episodes, trainer.sampling, seed=seed, step=step)
        seeds = [event["request"]["seed"] for event in server.of_kind("asked")]
        assert len(set(seeds)) == len(seeds)
        return {e.index: [s.response for s in e.steps] for e in episodes}

    everything = responses(8, range(6))
    assert len({tuple(r) for r in everything.values()}) == 6
    alone = responses(1, [4, 2])
    assert alone == {4: everything[4], 2: everything[2]}
    assert responses(8, [4], seed=2)[4] != everything[4] != responses(8, [4], step=1)[4]


def test_request_seeds_fit_vllm():
    seeds = {
        request_seed(*key)
        for key in [(0, 0, "a", 0, 0, i) for i in range(500)] + [(0, 0, "a", i, 0, 0) for i in (1, 2)]
    }
    assert len(seeds) == 502
    assert min(seeds) >= 0
    assert max(seeds) < 2**63
    assert request_seed("evaluation 0", 0, "a", 0, 0, 0) == request_seed("evaluation 0", 0, "a", 0, 0, 0)


def test_no_more_requests_at_once_than_set(install, tmp_path):
    gate, asked = threading.Event(), []

    def hold(prompt):
        asked.append(prompt)
        if len(asked) == 2:  # time for a third that should not come
            threading.Timer(0.3, gate.set).start()
        return gate

    with StandIn(hold=hold) as server:
        play(make(install, tmp_path, server, "streaming", max_concurrent_requests=2), ["0"] * 6)
    changes = [{"asked": 1, "answered": -1}.get(event["kind"], 0) for event in server.events]
    assert changes.count(1) == 6
    assert np.cumsum(changes).max() == 2


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_slow_turn_holds_nobody_else(install, tmp_path, schedule):
    """The first turn of one episode is not answered before all 17 turns of the others are."""
    tokenizer, gate = toy.make_tokenizer(), threading.Event()

    def slow(prompt):
        return "door 1." in tokenizer.decode(prompt) and "Step" not in tokenizer.decode(prompt)

    server = StandIn(
        hold=lambda prompt: gate if slow(prompt) else None, hold_seconds=60 if schedule == "streaming" else 0.3
    )
    log = server.log

    def opening(kind, **what):
        before = log(kind, **what)
        if kind == "answered" and before == 17 - 1:
            gate.set()
        return before

    server.log = opening
    with server:
        episodes = play(make(install, tmp_path, server, schedule), ["1", "7", "8"])
    assert [len(e.steps) for e in episodes] == [2, 8, 9]
    (held,) = server.of_kind("held")
    # In lock-step the others wait for it: the server gives up holding it back.
    assert held["opened"] == (schedule == "streaming")
    if schedule == "streaming":
        answered = [slow(event["request"]["prompt"][0]) for event in server.of_kind("answered")]
        assert answered.index(True) == 17


# ------------------------------------------------------------------------------------------- weights, correction


@pytest.mark.parametrize(
    "options", [{}, {"peft_config": LoraConfig(r=4, target_modules="all-linear")}], ids=["full", "lora"]
)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_what_is_sampled_from_is_what_is_trained(install, tmp_path, schedule, options):
    """The server samples from the weights it was sent: a large update between, no difference in log-probabilities."""
    tokenizer = toy.make_tokenizer()
    policy = PolicyAnswers(toy.make_model(tokenizer, seed=5), [tokenizer.eos_token_id], tokenizer.pad_token_id)
    with StandIn(policy=policy) as server:
        install(server.url)
        trainer = MultiTurnGRPOTrainer(
            toy.make_model(tokenizer),
            toy.config(
                tmp_path,
                use_vllm=True,
                vllm_mode="server",
                vllm_server_base_url=server.url,
                vllm_server_timeout=0.0,
                rollout_schedule=schedule,
                max_generations=2,
                learning_rate=0.02,
                temperature=0.8,
            ),
            environment=toy.tasks(),
            processing_class=tokenizer,
            **options,
        )
        trainer.train()
    logs = [entry for entry in trainer.state.log_history if "rollout/success" in entry]
    assert len(logs) == 2
    assert all(entry["grad_norm"] > 0 for entry in logs)
    for entry in logs:
        assert entry["sampling/sampling_logp_difference/max"] < 1e-4
        assert entry["sampling/sampling_logp_difference/mean"] <= entry["sampling/sampling_logp_difference/max"]
        for stat in ("min", "mean", "max"):
            assert entry[f"sampling/importance_sampling_ratio/{stat}"] == pytest.approx(1, abs=1e-4)
    assert len(server.of_kind("finish_weight_update")) == len(server.of_kind("reset_prefix_cache")) == 2
    assert all("time/weight_sync" in entry for entry in logs)


@pytest.mark.parametrize(("mode", "kept"), [(None, True), ("sequence_mask", False)])
def test_the_default_correction_keeps_long_rows(install, tmp_path, mode, kept):
    """A backend 10 % off on every token: over a whole conversation the ratios of a row multiply to far above 3."""
    tokenizer = toy.make_tokenizer()

    class Off(PolicyAnswers):
        def __call__(self, prompt, request):
            ids, logprobs = super().__call__(prompt, request)
            return ids, [x - 0.1 for x in logprobs]

    policy = Off(toy.make_model(tokenizer), [tokenizer.eos_token_id], tokenizer.pad_token_id)
    with StandIn(policy=policy) as server:
        options = {} if mode is None else {"vllm_importance_sampling_mode": mode}
        trainer = make(install, tmp_path, server, context="full", tasks=["7", "8"], max_generations=1, **options)
        trainer.train()
    log = next(entry for entry in trainer.state.log_history if "rollout/success" in entry)
    assert trainer.args.vllm_importance_sampling_mode == (mode or "token_truncate")
    assert log["sampling/sampling_logp_difference/mean"] == pytest.approx(0.1, abs=1e-3)
    ratio = log["sampling/importance_sampling_ratio/mean"]
    assert ratio == pytest.approx(np.exp(0.1) if kept else 0, abs=1e-3)


def test_weights_changed_without_a_step_are_sent(install, tmp_path):
    with StandIn() as server:
        trainer = make(install, tmp_path, server)
        play(trainer)
        play(trainer)
    assert len(server.of_kind("finish_weight_update")) == 2


@pytest.mark.parametrize("mode", ["server", "colocate"])
def test_prompts_fit_the_window_of_the_engine(install, tmp_path, mode):
    with StandIn(max_model_len=100) as server:
        install(server.url)
        url = server.url if mode == "server" else ""
        trainer = vllm_run.make(tmp_path, url, vllm_mode=mode, vllm_max_model_length=100)
        assert trainer.context.limit == 100 - 12
        assert all(len(s.context_ids) <= 88 for e in play(trainer) for s in e.steps)


def test_signatures_of_the_trl_methods_we_call():
    import inspect

    from trl.generation.vllm_client import VLLMClient
    from trl.generation.vllm_generation import VLLMGeneration

    assert list(inspect.signature(VLLMGeneration.generate).parameters)[:4] == [
        "self",
        "prompts",
        "images",
        "num_generations",
    ]
    assert list(inspect.signature(VLLMClient._post).parameters) == ["self", "url", "kwargs"]
    source = inspect.getsource(VLLMGeneration)
    for name in ("enable_sleep_mode", "_llm_weights_sleeping", 'wake_up(tags=["kv_cache"])', "sleep(level=2)"):
        assert name in source, name
