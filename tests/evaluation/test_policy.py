"""The policy's games do not depend on the batch, the order of the listing or the processes; its files are checked."""

import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import alfworld_games
import pytest
import torch
import toy
from transformers import AutoModelForCausalLM

from progpo_trl.environments.alfworld import AlfworldTasks, GeneratedAlfworldTasks, scan
from progpo_trl.environments.alfworld.generate import write_games
from progpo_trl.evaluation import EvaluationError, PlaySettings, PolicyAgent, evaluate, load_policy
from progpo_trl.evaluation.locks import only_one_in
from progpo_trl.evaluation.results import differing_games
from progpo_trl.tiny_policy import checkpoint_path

SETTINGS = PlaySettings(context="full", max_completion_length=16, prompt_template="tiny")


def with_batch(agent, size):
    return PolicyAgent(agent.model, agent.tokenizer, agent.settings, batch_size=size)


def test_the_batch_size_changes_no_game(tiny):
    tasks = GeneratedAlfworldTasks(n_eval=24)
    whole, threes = (
        evaluate(with_batch(tiny, size), tasks, splits=["valid_unseen"], seeds=(0, 1)) for size in (64, 5)
    )
    assert whole["games"] == threes["games"]
    assert [r["seeds"] for r in whole["results"]] == [[0, 1], [0]]  # greedy play needs one seed
    assert differing_games(whole, threes) == []
    zero, one = ([g["steps"] for g in whole["games"] if g["temperature"] and g["seed"] == s] for s in (0, 1))
    assert zero != one


def test_in_bfloat16_games_that_differ_are_reported(tiny, record_property):
    import copy

    tasks = GeneratedAlfworldTasks(n_eval=16)
    model = copy.deepcopy(tiny.model).to(torch.bfloat16)
    found = [
        evaluate(PolicyAgent(model, tiny.tokenizer, SETTINGS, batch_size=size), tasks, splits=["valid_unseen"])
        for size in (64, 3)
    ]
    differing = differing_games(*found)
    record_property("differing", differing)
    print(f"in bfloat16, {len(differing)} of {len(found[0]['games'])} plays differ between batch sizes: {differing}")
    assert found[0]["panels"] == found[1]["panels"]
    assert {tuple(d) for d in differing} <= {
        (g["split"], g["temperature"], g["seed"], g["task_id"]) for g in found[0]["games"]
    }


@pytest.fixture
def unseen(tmp_path, monkeypatch):
    """134 generated games as ALFWorld's game files, in the split valid_unseen; and as they were generated."""
    alfworld_games.known_version(monkeypatch)
    made = GeneratedAlfworldTasks(n_eval=134)
    grammar = alfworld_games.GRAMMAR.format(task="UNKNOWN GOAL.")
    ids = made.task_ids("valid_unseen")
    write_games(tmp_path / "games", made.games, ids, domain=alfworld_games.DOMAIN, grammar=grammar)
    return tmp_path / "games", made


def test_a_folder_of_134_games_once_each_whatever_the_listing(unseen, tiny, monkeypatch):
    folder, made = unseen
    one = evaluate(tiny, AlfworldTasks(folder, max_steps=12), splits=["valid_unseen"], temperatures=(0,))
    walk = os.walk

    def shuffled(*args, **kwargs):
        for current, folders, names in walk(*args, **kwargs):
            random.Random(0).shuffle(folders)
            yield current, folders, random.Random(1).sample(names, len(names))

    monkeypatch.setattr(scan.os, "walk", shuffled)
    shutil.rmtree(os.environ["XDG_CACHE_HOME"], ignore_errors=True)  # the index of the first listing
    two = evaluate(
        with_batch(tiny, 50), AlfworldTasks(folder, max_steps=12), splits=["valid_unseen"], temperatures=(0,)
    )
    assert len({g["task_id"] for g in one["games"]}) == len(one["games"]) == 134
    assert one["panels"] == two["panels"]
    assert one["games"] == two["games"]
    # A game file and the generated game it was made of are the same data, and are played alike.
    assert one["panels"][0]["data_sha256"] == made.data_hash(_as_files(made, one))
    plain = evaluate(tiny, made, splits=["valid_unseen"], temperatures=(0,))
    assert plain["results"][0]["success"] == one["results"][0]["success"]
    (result,) = one["results"]
    assert 0.2 < result["success"]["rate"] < 0.5


def _as_files(made, content):
    """The generated games' ids in the order of the ids of their files."""
    numbers = [g["task_id"].rpartition("_")[2] for g in content["games"]]
    return [f"easy/valid_unseen/{int(number):06d}" for number in numbers]


@pytest.mark.slow
def test_the_140_real_games_of_valid_seen_once_each(shared_data, tiny):
    tasks = AlfworldTasks(shared_data / "alfworld" / "games", on_error="raise")
    content = evaluate(tiny, tasks, splits=["valid_seen"], temperatures=(0,), max_turns=8)
    assert [g["task_id"] for g in content["games"]] == list(tasks.task_ids("valid_seen"))
    (panel,) = content["panels"]
    assert panel["games"] == 140
    assert panel["task_types"]["pick_and_place_simple"] == 35
    # of the texts, not of where they lie: another copy of the games gives it too
    assert panel["data_sha256"] == "fd153b6046b54144f676cb70b9c2d478928ccff66a1de74c1d620c81a5d33607"
    assert content["conditions"]["max_turns"] == 8


# ----------------------------------------------------------------------------------------------------------- processes


def command(*words, processes=1, code=0):
    env = os.environ | {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    env["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    start = [sys.executable, "-m"]
    if processes > 1:
        start += ["torch.distributed.run", "--nproc_per_node", str(processes), "--standalone", "-m"]
    done = subprocess.run(
        [*start, "progpo_trl.evaluate", *words], env=env, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == code, done.stderr[-3000:]
    return done


@pytest.mark.distributed
@pytest.mark.slow
def test_a_folder_that_is_taken_is_refused_by_all_processes_alike(tmp_path):
    words = ["--config", "quickstart", "--environment.n_eval", "3", "--out", str(tmp_path), "--resume"]
    with only_one_in(tmp_path):
        # torchrun's own exit status of a worker that failed is 1
        done = command(*words, processes=2, code=1)
    assert done.stderr.count(f"another evaluation is writing to {tmp_path}") == 2
    assert "gloo" not in done.stderr


@pytest.mark.distributed
@pytest.mark.slow
def test_two_processes_play_each_game_once_and_as_one_does(tmp_path, tiny):
    words = ["--config", "quickstart", "--environment.n_eval", "21", "--seeds", "3", "4", "--batch-size", "7"]
    done = command(*words, "--out", str(tmp_path / "two"), processes=2)
    two = json.loads((tmp_path / "two" / "evaluation.json").read_text())
    assert two["machine"]["processes"] == 2
    assert done.stdout.count("valid_unseen, greedy: 21 games") == 1  # one process speaks
    one = evaluate(tiny, GeneratedAlfworldTasks(n_eval=21), splits=["valid_unseen"], seeds=(3, 4))
    assert two["games"] == one["games"]
    assert two["results"] == one["results"]
    assert two["panels"] == one["panels"]
    assert len((tmp_path / "two" / "episodes.jsonl").read_text().splitlines()) == 63


# --------------------------------------------------------------------------------------------------------------- files


def test_adapters_are_loaded_with_their_base_or_on_another_path(tmp_path):
    from peft import LoraConfig, get_peft_model

    base = tmp_path / "base"
    shutil.copytree(checkpoint_path("base"), base)
    model = get_peft_model(
        AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32),
        LoraConfig(r=2, target_modules="all-linear", task_type="CAUSAL_LM", init_lora_weights=False),
    )
    model.save_pretrained(tmp_path / "adapter")
    ids = torch.arange(5, 30)[None]
    want = model.eval()(ids).logits
    agents = [
        load_policy(str(tmp_path / "adapter")),
        load_policy(None, str(tmp_path / "adapter")),
        load_policy(str(base), str(tmp_path / "adapter")),
        load_policy("tiny", str(tmp_path / "adapter")),
    ]
    for agent in agents:
        torch.testing.assert_close(agent.model(ids).logits, want)
        assert agent.facts()["adapter"] == str(tmp_path / "adapter")
    hashes = {(a.facts()["weights_sha256"], a.facts()["adapter_sha256"]) for a in agents}
    assert len(hashes) == 1
    assert load_policy(str(base)).facts()["weights_sha256"] == hashes.pop()[0]
    os.truncate(tmp_path / "adapter" / "adapter_model.safetensors", 500)
    with pytest.raises(EvaluationError, match=r"adapter: cannot be loaded: "):
        load_policy("tiny", str(tmp_path / "adapter"))


def test_an_adapter_of_another_model_is_refused(tmp_path):
    from peft import LoraConfig, get_peft_model

    other = toy.make_model(toy.make_tokenizer())
    get_peft_model(other, LoraConfig(r=2, target_modules="all-linear", task_type="CAUSAL_LM")).save_pretrained(
        tmp_path
    )
    with pytest.raises(EvaluationError, match=f"{tmp_path.name}: cannot be loaded: .*size mismatch"):
        load_policy("tiny", str(tmp_path))


def test_damaged_models_are_one_line(tmp_path):
    from safetensors.torch import load_file, save_file

    def copy(name):
        shutil.copytree(checkpoint_path("base"), tmp_path / name)
        return tmp_path / name

    cut = copy("cut")
    os.truncate(cut / "model.safetensors", 1000)
    with pytest.raises(EvaluationError, match="cut: cannot be loaded: "):
        load_policy(str(cut))
    lacking = copy("lacking")
    weights = load_file(lacking / "model.safetensors")
    weights.pop("model.layers.0.mlp.up_proj.weight")
    save_file(weights, lacking / "model.safetensors", {"format": "pt"})
    with pytest.raises(EvaluationError, match=r"1 of its weights are not in the files, model.layers.0.mlp.up_proj"):
        load_policy(str(lacking))
    (copy("json") / "config.json").write_text("{")
    (copy("empty") / "model.safetensors").unlink()
    (tmp_path / "nothing").mkdir()
    for name in ("json", "empty", "nothing", "nowhere"):
        with pytest.raises(EvaluationError, match=name) as error:
            load_policy(str(tmp_path / name))
        assert "\n" not in str(error.value)
        assert len(str(error.value)) < 500


def test_settings_that_do_not_fit_are_named(tiny):
    tasks = GeneratedAlfworldTasks(n_eval=2)
    for settings, message in (
        (PlaySettings(max_completion_length=10**6), "leaves no room for a prompt"),
        (PlaySettings(prompt_template="tinny"), "did you mean 'tiny'"),
    ):
        with pytest.raises(EvaluationError, match=message):
            evaluate(PolicyAgent(tiny.model, tiny.tokenizer, settings), tasks, splits=["valid_unseen"])
    with pytest.raises(EvaluationError, match="batch size"):
        with_batch(tiny, 0)
