"""The page on evaluation: its program runs, its tables name what the files hold, its links lead somewhere."""

import re
from pathlib import Path

from worlds import Scripted, doors

from progpo_trl.evaluation import evaluate
from progpo_trl.settings_values import read_file

PAGE = Path(__file__).parents[2] / "docs" / "evaluation.md"
TEXT = PAGE.read_text(encoding="utf-8")


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", TEXT, re.S)


def test_the_program_runs():
    (code,) = blocks("python")
    scope: dict = {}
    exec(code, scope)  # our own page
    assert len(scope["result"]["games"]) == 16
    assert scope["result"]["games"][0]["notes"] == {"calls": 1}


def test_the_tables_name_every_key():
    content = evaluate(Scripted(), doors(3), command=[])
    named = set(re.findall(r"`(\w+)`", TEXT))
    keys = {*content, *content["games"][0], *content["panels"][0], *content["results"][0]}
    assert keys <= named


def test_the_settings_are_accepted(tmp_path):
    from progpo_trl.settings import parse

    (text,) = blocks("yaml")
    (tmp_path / "a.yaml").write_text(text)
    words = [w for name, s in read_file(tmp_path / "a.yaml").items() for w in (f"--{name}", str(s.text))]
    _, config, _ = parse(["--config", "quickstart", *words, "--output_dir", str(tmp_path)])
    assert config.metric_for_best_model == "eval_success"
    assert config.eval_steps == config.save_steps == 5


def test_links_and_lines():
    for target in re.findall(r"\]\(([^)#]+)", TEXT):
        assert (PAGE.parent / target).exists(), target
    assert max(len(line) for line in TEXT.splitlines() if not line.startswith("|")) <= 119
