"""`progpo doctor` in several states of a machine: what it finds, what it advises, and that nothing stops it."""

import json
import os
import subprocess
import sys
from collections import namedtuple

import pytest

from progpo_trl.cli import main
from progpo_trl.doctor import data, machine, recipe, software
from progpo_trl.doctor.findings import Case, Finding, examine
from progpo_trl.memory import GB, QWEN
from progpo_trl.settings_values import said_of

LORA = "alfworld/qwen2.5-1.5b-instruct/progpo-lora"
FULL = "alfworld/qwen2.5-7b-instruct/progpo"


@pytest.fixture(autouse=True)
def _clean(monkeypatch, tmp_path):
    for name in ("ALFWORLD_DATA", "WEBSHOP_DATA", "WANDB_API_KEY", "WANDB_MODE", "HF_TOKEN", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "token"))


def case(config: str | None = None, launcher=None, **settings) -> Case:
    found = recipe.read_case(config, launcher)
    found.settings = {**found.settings, **settings}
    return found


def look(check, found: Case) -> list[Finding]:
    return list(check(found))


def statuses(findings: list[Finding]) -> set[str]:
    return {f.status for f in findings}


def test_a_machine_without_anything_is_quick_and_without_network(tmp_path):
    """In a process of its own: the whole command, sockets forbidden."""
    code = (
        "import socket, sys\n"
        "def no(*_, **__): raise AssertionError('network')\n"
        "socket.socket.connect = no\n"
        "from progpo_trl.cli import main\nsys.exit(main(['doctor', '--json']))\n"
    )
    before = os.times()
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=240)
    after = os.times()
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["problems"] == 0
    found = {f["what"]: f for f in answer["findings"]}
    assert found["ALFWorld"]["status"] == found["WebShop"]["status"] == "warning"
    assert "alfworld-download" in found["ALFWorld"]["advice"]
    assert "wins" in found["engine"]["text"]
    assert found["python"]["status"] == found["packages"]["status"] == "ok"
    assert "trl 1.16" in found["packages"]["text"]
    spent = after.children_user + after.children_system - before.children_user - before.children_system
    assert spent < 60


def test_the_quickstart_has_no_problem(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["doctor", "--config", "quickstart"]) == 0
    out = capsys.readouterr().out
    assert "its settings can be used" in out
    assert "0 problems" in out
    assert "ALFWORLD_DATA" not in out  # it needs none


def test_a_broken_check_is_a_finding():
    def check_bad_luck(found):
        yield Finding("ok", "first", "fine")
        raise RuntimeError("line one\nline two")

    first, broken, last = examine(case(), [check_bad_luck, software.check_python])
    assert first.what == "first"
    assert (broken.status, broken.what) == ("problem", "bad luck")
    assert "RuntimeError: line one line two" in broken.text
    assert last.what == "python"


def test_versions(monkeypatch):
    installed = {"trl": "1.17.0", "transformers": "9.0.0", "rich": None}
    real = software.version_of
    monkeypatch.setattr(software, "version_of", lambda name: installed.get(name, real(name)))
    found = {f.what: f for f in look(software.check_packages, case())}
    assert found["trl"].status == "problem"
    assert found["trl"].text == "1.17.0 is installed, <1.17,>=1.16 is needed"
    assert found["trl"].advice == "pip install 'trl<1.17,>=1.16'"
    assert found["rich"].text == "is not installed"
    assert found["transformers"].status == "warning"
    monkeypatch.setattr(software.platform, "python_version", lambda: "3.10.4")
    assert statuses(look(software.check_python, case())) == {"problem"}


def test_vllm(monkeypatch):
    monkeypatch.setattr(software, "version_of", lambda name: None)
    assert statuses(look(software.check_vllm, case())) == {"ok"}
    (found,) = look(software.check_vllm, case(LORA))
    assert found.status == "problem"
    assert "vllm<=0.31.0" in found.advice
    assert look(software.check_vllm, case("quickstart")) == []
    versions = {"vllm": "0.40.0", "transformers": "5.24.0", "torch": "2.13.0"}
    monkeypatch.setattr(software, "version_of", versions.get)
    real = software.metadata.requires
    wants = ["transformers<5.20,>=5.10", "torch==2.13.0", 'ray; extra == "ray"']
    monkeypatch.setattr(software.metadata, "requires", lambda name: wants if name == "vllm" else real(name))
    ceiling, conflict = look(software.check_vllm, case(LORA))
    assert ceiling.text.startswith("0.40.0 is outside of TRL's range")
    assert conflict.text == "0.40.0 wants transformers<5.20,>=5.10, and 5.24.0 is installed"
    assert ceiling.status == conflict.status == "problem"


def test_extras(monkeypatch, tmp_path):
    monkeypatch.setattr(software, "version_of", lambda name: None)
    assert look(software.check_extras, case(LORA)) == []
    launcher = tmp_path / "zero3.yaml"
    launcher.write_text("distributed_type: DEEPSPEED\nnum_processes: 4\ndeepspeed_config: {zero_stage: 3}\n")
    found = look(software.check_extras, case(LORA, str(launcher), load_in_4bit=True, report_to="trackio"))
    assert [f.what for f in found] == ["deepspeed", "bitsandbytes", "trackio"]
    assert found[1].advice == "pip install 'progpo_trl[quantization]'"
    monkeypatch.setattr(software, "version_of", lambda name: "1.0")
    assert statuses(look(software.check_extras, case(LORA, str(launcher)))) == {"ok"}


def test_keys_are_found_and_never_shown(monkeypatch, tmp_path, capsys):
    (found,) = look(software.check_wandb, case(LORA))
    assert (found.status, found.text) == ("warning", "not logged in")
    assert "wandb login" in found.advice
    (tmp_path / "netrc").write_text("machine api.wandb.ai login user password " + "e" * 40 + "\n")
    assert statuses(look(software.check_wandb, case(LORA))) == {"ok"}
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert "WANDB_MODE=offline" in look(software.check_wandb, case(LORA))[0].text
    assert look(software.check_wandb, case("quickstart")) == []
    monkeypatch.delenv("WANDB_MODE")
    monkeypatch.setenv("WANDB_API_KEY", "f" * 40)
    monkeypatch.setenv("HF_TOKEN", "hf_" + "g" * 34)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    texts = json.dumps([vars_of(f) for f in [*look(software.check_wandb, case()), *look(software.check_hub, case())]])
    assert texts.count("is there") == 2
    assert not any(letter * 10 in texts for letter in "efg")


def vars_of(finding: Finding) -> list[str]:
    return [finding.status, finding.what, finding.text, finding.advice]


def test_the_hub(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    assert statuses(look(software.check_hub, case())) == {"ok"}
    assert statuses(look(software.check_hub, case(LORA, push_to_hub=True))) == {"problem"}
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    (found,) = look(software.check_hub, case(LORA, push_to_hub=True))
    assert "HF_HUB_OFFLINE" in found.text
    assert found.status == "problem"


def test_without_a_gpu(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr(software.shutil, "which", lambda name: None)
    assert statuses(look(software.check_torch, case())) == {"warning"}
    assert statuses(look(software.check_torch, case(LORA))) == {"problem"}
    assert statuses(look(software.check_torch, case("quickstart"))) == {"ok"}
    monkeypatch.setattr(software.shutil, "which", lambda name: "/usr/bin/nvidia-smi")
    (found,) = look(software.check_torch, case())
    assert "NVIDIA driver" in found.text


def test_alfworld_data(shared_data, monkeypatch, tmp_path):
    monkeypatch.setenv("ALFWORLD_DATA", str(shared_data / "alfworld"))
    found = look(data.check_alfworld, case())
    assert statuses(found) == {"ok"}
    assert "12 games of train, 6 games of valid_seen" in found[0].text
    assert "text version 0.4" in found[1].text
    assert all("wins" in f.text for f in found[2:])
    (short,) = [f for f in look(data.check_alfworld, case(LORA)) if f.status == "problem"]
    assert "12 tasks in train cannot fill a generation of 16 groups" in short.text
    (wrong,) = [
        f for f in look(data.check_alfworld, other_split(case(LORA), "valid_unseen")) if "eval_split" in f.text
    ]
    assert wrong.status == "problem"


def test_splits_of_two_text_versions(shared_data, monkeypatch, tmp_path):
    (tmp_path / "valid_seen").symlink_to(shared_data / "alfworld" / "legacy_0.2.2" / "valid_seen")
    (tmp_path / "train").symlink_to(shared_data / "alfworld" / "json_2.1.1" / "train")
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path))
    found = look(data.check_alfworld, case())
    (mixed,) = [f for f in found if f.status == "warning"]
    assert mixed.text == "the splits are of different text versions: train 0.4, valid_seen 0.2.2"
    assert sum("wins" in f.text for f in found) == 2


def other_split(found: Case, split: str) -> Case:
    found.settings = {**found.settings, "environment": {**found.environment, "eval_split": split}}
    return found


def test_alfworld_data_that_is_not_there(monkeypatch, tmp_path):
    (found,) = look(data.check_alfworld, case(LORA))
    assert (found.status, found.text) == ("problem", "ALFWORLD_DATA is not set")
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path))
    (found,) = look(data.check_alfworld, case(LORA))
    assert found.status == "problem"
    assert str(tmp_path) in found.text


@pytest.mark.parametrize("check", [data.check_alfworld, data.check_webshop])
def test_a_place_of_data_is_named_once(monkeypatch, tmp_path, check):
    (tmp_path / "empty").mkdir()
    (tmp_path / "a-file").touch()
    monkeypatch.chdir(tmp_path)
    for place in (tmp_path / "nowhere", tmp_path / "empty", tmp_path / "a-file", "empty", "nowhere"):
        for name in ("ALFWORLD_DATA", "WEBSHOP_DATA"):
            monkeypatch.setenv(name, str(place))
        (found,) = look(check, case())
        assert found.status == "warning"
        assert found.text.count(os.path.basename(place)) == 1, found.text


def test_what_an_error_says_of_a_place():
    assert said_of("/data", PermissionError(13, "Permission denied", "/data/x")) == "/data/x: Permission denied"
    assert said_of("/data", OSError(5, "Input/output error")) == "/data: Input/output error"
    assert said_of("/data", ImportError("no module\nat all")) == "/data: no module at all"
    assert said_of("/data", ValueError("/data: is empty")) == "/data: is empty"


def test_webshop_data(shared_data, monkeypatch, tmp_path):
    monkeypatch.setenv("WEBSHOP_DATA", str(shared_data / "webshop"))
    counts, bought = look(data.check_webshop, case())
    assert "1000 products" in counts.text
    assert "500 goals of test" in counts.text
    assert bought.status == "ok"
    assert "score 1.00" in bought.text
    monkeypatch.setattr(data, "_LARGE", 1000)
    (large,) = look(data.check_webshop, case())
    assert "progpo webshop index" in large.advice
    monkeypatch.setenv("WEBSHOP_DATA", str(tmp_path))
    (found,) = look(data.check_webshop, case())
    assert found.status == "warning"


def test_the_recipe(tmp_path, capsys):
    assert main(["doctor", "--config", "no-such-recipe"]) == 2
    assert "no recipe of that name" in capsys.readouterr().err
    path = tmp_path / "bad.yaml"
    path.write_text("model_name_or_path: tiny\nlearning_rat: 1\nenvironment: {name: alfworld_generated}\n")
    (found,) = look(recipe.check_recipe, case(str(path)))
    assert found.status == "problem"
    assert "did you mean 'learning_rate'?" in found.text
    # settings for a GPU are examined on a machine without one
    assert statuses(look(recipe.check_recipe, case(FULL))) == {"ok"}


def test_an_accelerate_config_that_cannot_be_read(tmp_path, capsys):
    bad = tmp_path / "bad.yaml"
    bad.write_text("num_processes: [\n")
    for path, message in (
        (tmp_path, ": Is a directory"),
        (tmp_path / "no", ": No such file"),
        (bad, ": is not valid"),
    ):
        assert main(["doctor", "--accelerate-config", str(path)]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"progpo doctor: error: --accelerate-config {path}{message}")
        assert "Errno" not in line


def test_launch(tmp_path, monkeypatch):
    monkeypatch.setattr(recipe, "_gpus", lambda: 0)
    (one,) = look(recipe.check_launch, case(LORA))
    assert one.text == "1 process (no accelerate config); the recipe runs on 1, 2, 4, 8"
    launcher = tmp_path / "multi.yaml"
    launcher.write_text("num_processes: 3\ndistributed_type: MULTI_GPU\nnum_machines: 1\n")
    (three,) = look(recipe.check_launch, case(LORA, str(launcher)))
    assert three.status == "problem"
    assert "--num_processes: 1, 2, 4, 8" in three.advice
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setattr(recipe, "_gpus", lambda: 2)
    found = look(recipe.check_launch, case(LORA, str(launcher)))
    assert found[0].text.startswith("4 processes (WORLD_SIZE)")
    assert found[1].text == "4 processes for 2 GPUs"
    monkeypatch.delenv("WORLD_SIZE")
    monkeypatch.setattr(recipe, "_gpus", lambda: 8)
    assert "8 GPUs, of which 1 would be used" in look(recipe.check_launch, case(LORA))[1].text


def test_the_model(tmp_path, monkeypatch):
    assert statuses(look(recipe.check_model, case("quickstart"))) == {"ok"}
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    assert statuses(look(recipe.check_model, case(LORA))) == {"warning"}
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert statuses(look(recipe.check_model, case(LORA))) == {"problem"}
    assert statuses(look(recipe.check_model, case(model_name_or_path=str(tmp_path / "no")))) == {"problem"}
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    assert "llama" in look(recipe.check_model, case(model_name_or_path=str(tmp_path)))[0].text


def test_disk_and_output_dir(tmp_path, monkeypatch):
    usage = namedtuple("usage", "total used free")
    out = str(tmp_path / "a" / "b")
    assert statuses(look(machine.check_disk, case(FULL, output_dir=out))) <= {"ok", "problem", "warning"}
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda place: usage(100, 100, 0))
    assert statuses(look(machine.check_disk, case())) == {"warning"}
    (full,) = look(machine.check_disk, case(FULL, output_dir=out))
    assert full.status == "problem"
    assert f"0 GB are free at {tmp_path}" in full.text
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda place: usage(1e15, 0, 1e15))
    assert statuses(look(machine.check_disk, case(FULL, output_dir=out))) == {"ok"}
    assert statuses(look(machine.check_output_dir, case(FULL, output_dir=out))) == {"ok"}
    assert not (tmp_path / "a").exists()
    (tmp_path / "a").write_text("")
    assert "is a file" in look(machine.check_output_dir, case(FULL, output_dir=out))[0].text
    monkeypatch.setattr(machine.os, "access", lambda *_: False)
    assert "not writable" in look(machine.check_output_dir, case(FULL, output_dir=str(tmp_path)))[0].text
    monkeypatch.undo()
    (tmp_path / "checkpoint-3").mkdir()
    assert statuses(look(machine.check_output_dir, case(FULL, output_dir=str(tmp_path)))) == {"warning"}


def test_memory_follows_the_settings():
    dims = QWEN["7B"]
    full = {"dtype": "float32", "beta": 0.01, "bf16": True, "rows_per_forward": 16, "use_vllm": True}
    alone = machine.memory_of(dims, full)
    p = dims.parameters
    assert (alone["weights"], alone["gradients"], alone["Adam"], alone["reference"]) == (4 * p, 4 * p, 8 * p, 4 * p)
    shared = machine.memory_of(dims, full, 4, "all")
    assert shared["weights"] == p
    assert shared["Adam"] == 2 * p
    assert machine.memory_of(dims, full, 4, "gradients")["weights"] == 4 * p
    lora = machine.memory_of(dims, {**full, "use_peft": True, "lora_r": 32, "dtype": "bfloat16"})
    assert lora["reference"] == 0
    assert lora["Adam"] == 8 * dims.lora(32)
    assert sum(lora.values()) < sum(alone.values()) / 3
    four = machine.memory_of(dims, {**full, "use_peft": True, "load_in_4bit": True, "dtype": "bfloat16"})
    assert four["weights"] < 0.6 * p + 4 * dims.lora(16)
    fewer = machine.memory_of(dims, {**full, "rows_per_forward": 1})
    assert fewer["update"] < alone["update"]
    many = {**full, "rows_per_forward": 1, "use_vllm": False, "groups_per_generation": 32, "num_generations": 8}
    assert machine.memory_of(dims, many)["rollout"] == 2 * machine.memory_of(dims, many, 2)["rollout"]


def test_memory_against_the_machine(monkeypatch):
    monkeypatch.setattr(machine, "_ram", lambda: (16 * GB, 8 * GB))
    (found,) = look(machine.check_memory, case("quickstart"))
    assert found.status == "ok"
    assert "for 8 GB of free memory" in found.text
    monkeypatch.setattr(machine, "_ram", lambda: (16 * GB, 0.001 * GB))
    (found,) = look(machine.check_memory, case("quickstart"))
    assert found.status == "problem"
    assert "rows_per_forward" in found.advice
    (unknown,) = look(machine.check_memory, case(LORA, model_name_or_path="alice/model"))
    assert unknown.text.startswith("no estimate")
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda device: (int(80 * GB), int(80 * GB)))
    (lora,) = look(machine.check_memory, case(LORA))
    assert lora.status == "ok"
    assert "56 GB of GPU memory" in lora.text  # vLLM has its 0.3
    assert statuses(look(machine.check_memory, case(FULL))) == {"problem"}


def test_a_container_has_less(tmp_path, monkeypatch):
    (tmp_path / "memory.max").write_text(f"{2 * GB:.0f}\n")
    (tmp_path / "memory.current").write_text(f"{GB:.0f}\n")
    monkeypatch.setattr(machine, "_CGROUP", tmp_path)
    total, free = machine._ram()
    assert total == 2 * GB
    assert free <= GB
    (tmp_path / "memory.max").write_text("max\n")
    assert machine._ram()[0] > 2 * GB


def test_it_leaves_logging_as_it_was(capsys):
    import logging

    before = logging.getLogger("progpo_trl").level
    main(["doctor"])
    assert logging.getLogger("progpo_trl").level == before
