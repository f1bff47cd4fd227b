"""The pages on estimators: their examples run, their tables name every option, their links lead somewhere."""

import re
import sys
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import yaml

sys.path.insert(0, str(Path(__file__).parent / "advantages"))

from test_properties import batch_of, episode

from progpo_trl.advantages import GRPO, HGPO, TRLGRPO, GiGPO, ProGPO, ProxMO, make_estimator
from progpo_trl.explain import explain

DOCS = Path(__file__).parents[1] / "docs" / "estimators"
PAGES = sorted(DOCS.glob("*.md"))
EPISODES = [
    episode(0, ["You arrive at desk", "You arrive at shelf"], 10.0),
    episode(0, ["You arrive at desk", "nothing"]),
    episode(1, ["You arrive at desk", "nothing", "nothing"]),
    episode(1, ["You arrive at desk", "You arrive at shelf"]),
]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(encoding="utf-8"), re.S)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_examples_run(page):
    for code in blocks(page, "python"):
        scope: dict = {}
        exec(code, scope)  # our own pages
        if "estimator" in scope:
            assert np.isfinite(scope["estimator"](batch_of(EPISODES))).all()
    for text in blocks(page, "yaml"):
        sections = yaml.safe_load(text)
        assert set(sections) <= {"advantage", "progress_fallback"}
        assert make_estimator(**sections)(batch_of(EPISODES)).any()


@pytest.mark.parametrize(
    ("page", "cls"),
    [("grpo", GRPO), ("grpo", TRLGRPO), ("gigpo", GiGPO), ("hgpo", HGPO), ("proxmo", ProxMO), ("progpo", ProGPO)],
)
def test_every_option_is_in_a_table(page, cls):
    rows = [line for line in (DOCS / f"{page}.md").read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    assert {field.name for field in fields(cls)} - {"base"} <= named


def test_your_own_in_ten_lines():
    code, with_terms, trainer = blocks(DOCS / "your-own.md", "python")
    scope: dict = {}
    exec(code, scope)
    own = scope["longest_wins"]
    assert len(code.split("def ")[1].strip().splitlines()) <= 10
    batch = batch_of(EPISODES)
    assert own(batch).tolist() == [0, 0, 0, 0, 0.5, 0.5, 0.5, -0.5, -0.5]
    assert ProGPO(own)(batch)[:4].tolist() == [0, 0, 0, 0]
    assert explain(EPISODES, own, 1).estimator == "longest_wins"
    exec(with_terms, scope)
    estimator = scope["RewardToGo"]()
    assert estimator(batch).shape == (len(batch),)
    assert "return" in explain(EPISODES, estimator, 0).episodes[0].steps[0].columns
    exec(trainer, scope)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_and_lines(page):
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        assert (page.parent / target).exists(), target
    prose = [line for line in text.splitlines() if not line.startswith("|")]
    assert max(map(len, prose)) <= 119


def test_logged_names_are_those_of_the_page():
    from progpo_trl.metrics import group_metrics

    text = (DOCS / "README.md").read_text(encoding="utf-8")
    batch = batch_of(EPISODES)
    logged = group_metrics(batch, GRPO()(batch))
    for estimator in (ProGPO(HGPO()), ProxMO()):
        logged |= estimator.diagnostics(batch)
    for name in logged:
        if name not in ("advantages/abs_mean", "anchors/mean_size", "anchors_full_depth/mean_size"):
            assert name in text or name.startswith("anchors/size"), name
