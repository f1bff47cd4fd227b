"""docs/scaling.md: its commands are ones that the launchers and our settings take."""

import dataclasses
import re
import shlex
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
TEXT = (ROOT / "docs" / "scaling.md").read_text(encoding="utf-8")


def commands(start: str) -> list[list[str]]:
    """Words of every command in the page that begins with `start`, after its environment variables."""
    out = []
    for block in re.findall(r"```bash\n(.*?)```", TEXT, re.S):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line.replace("$MACHINE_RANK", "1"), comments=True)
            while words and "=" in words[0]:
                words.pop(0)
            if words[:2] == start.split():
                out.append(words[2:])
    return out


@pytest.mark.parametrize(
    "words", commands("accelerate launch"), ids=lambda words: f"{Path(words[1]).stem}-{len(words)}"
)
def test_launches(words):
    from accelerate.commands import launch
    from trl import ModelConfig

    from progpo_trl import MultiTurnGRPOConfig
    from progpo_trl.settings import ScriptArguments, find_recipe

    arguments = launch.launch_command_parser().parse_args(words)
    assert (ROOT / arguments.config_file).is_file()
    assert arguments.training_script == "progpo_trl.train"
    checked, _, _ = launch._validate_launch_command(arguments)
    assert checked.num_processes % (arguments.num_machines or 1) == 0
    settings = dict(zip(arguments.training_script_args[::2], arguments.training_script_args[1::2], strict=True))
    recipe = yaml.safe_load(find_recipe(settings.pop("--config")).read_text(encoding="utf-8"))
    updates = int(settings.get("--updates_per_generation", recipe["updates_per_generation"]))
    episodes = recipe["groups_per_generation"] * recipe["num_generations"]
    assert episodes % (checked.num_processes * updates) == 0
    known = {f.name for c in (ScriptArguments, MultiTurnGRPOConfig, ModelConfig) for f in dataclasses.fields(c)}
    assert {name.removeprefix("--") for name in settings} <= known


def test_the_server():
    from trl.scripts.vllm_serve import ScriptArguments

    (words,) = commands("trl vllm-serve")
    known = {f.name for f in dataclasses.fields(ScriptArguments)}
    assert {word.removeprefix("--") for word in words[::2]} <= known


def test_files_and_lines():
    for name in re.findall(r"`((?:benchmarks|tests|recipes|accelerate_configs)/[\w./-]+)`", TEXT):
        assert (ROOT / name).exists(), name
    for name in re.findall(r"`(\w+\.yaml)`", TEXT):
        assert (ROOT / "accelerate_configs" / name).exists(), name
    prose = [line for line in TEXT.splitlines() if not line.startswith("|")]
    assert max(map(len, prose)) <= 119
