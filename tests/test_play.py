"""Episodes played by hand: the records of a run, the prompts of a run, hints that lead to success from anywhere."""

import json
import random
from dataclasses import fields

import numpy as np
import pytest
from play_sites import within

from progpo_trl.actions import MAX_ACTION_CHARACTERS
from progpo_trl.cli import main
from progpo_trl.environments import load_environment
from progpo_trl.environments.webshop import WebshopTasks
from progpo_trl.episodes import Episode, StopReason, episode_from_json
from progpo_trl.explain import read_generation
from progpo_trl.play.hints import hint
from progpo_trl.play.player import HISTORY, Player
from progpo_trl.play.record import EpisodeFile, Keeper
from progpo_trl.play.shop_page import shop_page


@pytest.fixture(scope="module")
def shop():
    return load_environment("webshop_generated", products=200)


@pytest.fixture(scope="module")
def rooms():
    return load_environment("alfworld_generated", level="hard", n_train=60, n_eval=60)


def wander(player, rng, steps):
    """Random commands, and now and then something else."""
    for _ in range(steps):
        if player.done:
            return
        commands = [str(c) for c in player.turn.admissible or ()] + ["search[table]", "nonsense", "click[search]"]
        buys = "click[buy now]"
        player.play(rng.choice([c for c in commands if c != buys]))


@pytest.mark.parametrize("name", ["shop", "rooms"])
def test_an_episode_and_its_prompts_are_those_of_a_run(name, request):
    from progpo_trl.config import MultiTurnGRPOConfig
    from progpo_trl.generation import TurnOutput
    from progpo_trl.rollout import play

    history = next(f.default for f in fields(MultiTurnGRPOConfig) if f.name == "history")
    assert history == HISTORY
    tasks = request.getfixturevalue(name)
    split = "dev" if name == "shop" else "valid_unseen"
    player = Player(tasks, tasks.task_ids(split)[3])
    wander(player, random.Random(5), 9)
    actions, prompts = iter([s.action for s in player.episode.steps]), []
    assert len(player.episode.steps) == 9

    class Context:
        def prompts(self, views):
            prompts.extend(player.template.render("window", view, history) for view in views)
            return [np.zeros(1, np.int32) for _ in views]

    def generate(episodes, ids):
        return [TurnOutput(np.zeros(1, np.int32), None, False) for _ in episodes]

    def decode(ids):
        return [f"<think>t</think><action>{next(actions)}</action>" for _ in ids]

    recorded = Episode(player.task_id, player.task_type)
    play([recorded], tasks, Context(), generate, decode, max_turns=9, step_limit=tasks.max_steps,
         action_format=tasks.action_format)  # fmt: skip
    ours, theirs = player.episode.to_json(), recorded.to_json()
    assert theirs.pop("stop_reason") == "step_limit"  # of the nine turns
    assert ours.pop("stop_reason") is None
    for step in ours["steps"] + theirs["steps"]:
        del step["response"], step["tokens"]
    assert ours == theirs
    again = Player(tasks, player.task_id)
    for prompt, step in zip(prompts, player.episode.steps, strict=True):
        assert again.prompt() == prompt
        again.play(step.action)


@pytest.mark.parametrize("name", ["shop", "rooms"])
def test_undo_is_as_if_the_step_had_not_been(name, request):
    tasks = request.getfixturevalue(name)
    rng = random.Random(1)
    for task_id in tasks.task_ids("train")[:4]:
        player = Player(tasks, task_id)
        assert not player.undo()
        wander(player, rng, rng.randint(2, 12))
        n = rng.randint(1, len(player.episode.steps))
        other = Player(tasks, task_id)
        for step in player.episode.steps[:-n]:
            other.play(step.action)
        for _ in range(n):
            assert player.undo()
        assert player.turns == other.turns
        assert player.episode.to_json() == other.episode.to_json()
        assert player.prompt() == other.prompt()


def test_actions_are_read_as_a_policys(rooms):
    player = Player(rooms, rooms.task_ids("train")[0])
    command = player.turn.admissible[0]
    player.play(f"  {command.upper()} ")
    player.play("go to \u4e2d 1")
    player.play("x" * 1000)
    steps = player.episode.steps
    assert [s.action for s in steps] == [command, "go to \u4e2d 1", "x" * MAX_ACTION_CHARACTERS]
    assert [s.admissible for s in steps] == [True, False, False]
    assert [s.format_valid for s in steps] == [True, False, True]
    for empty in ("", " \n"):
        with pytest.raises(ValueError, match="empty"):
            player.play(empty)
    player.play("<action> look </action> inventory")
    while not player.done:
        player.play("look")
    assert player.episode.stop_reason is StopReason.STEP_LIMIT
    assert player.prompt() is None
    with pytest.raises(ValueError, match="over"):
        player.play("look")
    with pytest.raises(KeyError, match="no generated game"):
        Player(rooms, "nowhere")


@pytest.mark.parametrize(("level", "types"), [("easy", 1), ("medium", 6), ("hard", 4)])
def test_hints_solve_alfworld_from_anywhere(level, types):
    tasks = load_environment("alfworld_generated", level=level, max_steps=400, n_eval=40)
    rng, kinds = random.Random(2), set()
    for task_id in tasks.task_ids("valid_unseen"):
        player = Player(tasks, task_id)
        kinds.add(player.task_type)
        wander(player, rng, rng.randint(0, 15))
        assert within(385, lambda p=player: p.done, lambda p=player: p.play(hint(p)))
        assert player.episode.success, (task_id, [s.action for s in player.episode.steps])
        assert hint(player) is None
    assert len(kinds) == types


@pytest.mark.parametrize("mode", ["compat", "strict"])
def test_hints_buy_the_target_from_anywhere(mode):
    tasks = load_environment("webshop_generated", products=200, mode=mode, max_steps=100)
    rng, scores = random.Random(3), []
    for task_id in tasks.task_ids("train")[:60]:
        player = Player(tasks, task_id)
        wander(player, rng, rng.randint(0, 12))
        assert within(88, lambda p=player: p.done, lambda p=player: p.play(hint(p))), player.episode.steps[-1].action
        scores.append(player.score)
    assert np.mean([score == 1.0 for score in scores]) >= 0.95


def test_hints_on_the_real_games(shared_data):
    games = load_environment(
        "alfworld", games=shared_data / "alfworld" / "games" / "valid_seen.jsonl.xz", max_steps=300
    )
    won = []
    for task_id in games.task_ids("valid_seen")[::14]:
        player = Player(games, task_id)
        within(300, lambda p=player: p.done, lambda p=player: p.play(hint(p)))
        won.append(player.episode.success)
    assert sum(won) >= 9, won
    real = WebshopTasks(shared_data / "webshop", max_steps=50)
    for task_id in real.task_ids("dev")[:20]:
        player = Player(real, task_id)
        assert within(50, lambda p=player: p.done, lambda p=player: p.play(hint(p)))
        assert player.score > 0.5


def test_the_buttons_of_shop_pages_are_the_commands(shop):
    rng, kinds = random.Random(4), set()
    for task_id in shop.task_ids("train")[:20]:
        player = Player(shop, task_id)
        for _ in range(15):
            page = shop_page(player.environment.session)
            kinds.add(page.kind)
            buttons = [*page.navigation, *page.details, *(b for values in page.options.values() for b in values)]
            actions = [b.action for b in buttons] + [row.action for row in page.results]
            actions += [page.buy.action] if page.buy else []
            listed = [c for c in player.turn.admissible if c.startswith("click")]
            assert sorted(set(actions)) == sorted(listed)
            for text in [page.title, page.price, page.heading, *page.paragraphs, *(r.title for r in page.results)]:
                assert text in player.turn.observation or page.kind in ("end", "sub")
            chosen = {name: b.label for name, values in page.options.items() for b in values if b.chosen}
            assert chosen == player.environment.session.options or page.kind != "item"
            if player.done:
                break
            options = [b.action for values in page.options.values() for b in values]
            player.play(rng.choice([*listed, *options, "search[lamp]", "search[chair for the desk]"]))
    assert kinds == {"start", "results", "item", "sub", "end"}


def test_saved_episodes_are_read_as_a_runs(rooms, tmp_path, capsys):
    path = tmp_path / "played.jsonl"
    for part in range(2):  # the second file object goes on where the first one stopped
        file = EpisodeFile(path)
        for number in (0, part, 0):
            player, keeper = Player(rooms, rooms.task_ids("train")[number]), Keeper(file)
            assert not keeper.keep(player.episode)
            wander(player, random.Random(number + part), 3)
            assert keeper.keep(player.episode)
            assert not keeper.keep(player.episode)
    records = [json.loads(line) for line in path.read_text().splitlines()]
    assert [r["group"] for r in records] == [0, 0, 0, 0, 1, 0]
    assert [r["index"] for r in records] == list(range(6))
    assert episode_from_json(records[-1]).steps[0].observation == player.episode.steps[0].observation
    step, episodes = read_generation(path)
    assert (step, len(episodes)) == (0, 6)
    assert main(["explain", str(path), "--group", "0", "--html", str(tmp_path / "page.html")]) == 0
    assert "group 0 of step 0" in capsys.readouterr().out


@pytest.mark.parametrize("content", ["{}\n", "no json\n", '{"task_id": "a"', "\xff\n"])
def test_a_file_of_something_else_is_not_appended_to(content, tmp_path):
    path = tmp_path / "other.jsonl"
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(ValueError, match="other.jsonl, line 1: no episode"):
        EpisodeFile(path)
    assert path.read_bytes() == content.encode("latin-1")
