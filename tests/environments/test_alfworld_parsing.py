"""Reading problems and telling text versions apart."""

import json

import pytest
from alfworld_games import DOMAIN, GAMES, GRAMMAR, known_version, problem

from progpo_trl.environments.alfworld import TASK_TYPES, Game, GameFileError
from progpo_trl.environments.alfworld.game import shown_names
from progpo_trl.environments.alfworld.versions import read_version


def test_what_a_parsed_game_tells():
    game = Game.from_problem(problem("pick_cool_then_place_in_recep"), "cool some mug and put it in desk.")
    assert (game.task_type, game.goal.object_type, game.goal.receptacle_type, game.goal.needs) == (
        *("pick_cool_then_place_in_recep", "mug", "desk", "cool"),
    )
    by_name = {receptacle.name: number for number, receptacle in enumerate(game.receptacles)}
    assert sorted(by_name) == [
        *("cabinet 1", "cabinet 2", "countertop 1", "desk 1", "fridge 1", "microwave 1", "sinkbasin 1"),
    ]
    cabinet = game.receptacles[by_name["cabinet 2"]]
    assert (cabinet.type, cabinet.openable, "mug" in cabinet.accepts) == ("cabinet", True, True)
    assert [game.items[item].name for item in game.contents[by_name["cabinet 2"]]] == ["mug 2"]
    assert game.opened == frozenset()
    assert game.receptacles_at[cabinet.location] == (by_name["cabinet 2"], by_name["cabinet 1"])


@pytest.mark.parametrize("task_type", TASK_TYPES)
def test_the_goal_tells_the_task_type(task_type):
    assert Game.from_problem(problem(task_type), "task").task_type == task_type


def test_names_count_down_in_id_order_and_basins_are_told_from_their_ids():
    ids = ["mug_bar_1", "mug_bar_2", "plain", "sink_bar_1", "sink_bar_1_bar_sinkbasin"]
    assert list(shown_names(ids).values()) == ["mug 2", "mug 1", "plain ", "sink 1", "sinkbasin 1"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("(:goal", "(:gaol", "no \\(:init"),
        ("(:init", "(:in", "no \\(:init"),
        ("(objectType Fork_bar_1 ForkType)", "(objectType Fork_bar_1)", "wrong number of arguments"),
        ("(openable Fridge_bar_1)", "(enormous Fridge_bar_1)", "'enormous'"),
        ("(openable Fridge_bar_1)", "(holds agent1 Fork_bar_1)", "'holds'"),
        ("(openable Fridge_bar_1)", "(not (openable Fridge_bar_1))", "not a fact"),
        ("(openable Fridge_bar_1)", "(openable Fridge_bar_1", "parentheses"),
        ("(atLocation agent1 loc_bar_0)", "", "0 agents"),
        ("(openable Fridge_bar_1)", "(atLocation agent2 loc_bar_0)", "2 agents"),
        ("(openable Fridge_bar_1)", "(receptacleAtLocation Fridge_bar_1 loc_bar_9)", "two values"),
        ("(inReceptacle ?o ?r)", "(inReceptacle ?r ?o)", "six task types"),
        ("(inReceptacle ?o ?r)", "", "six task types"),
    ],
)
def test_a_problem_of_another_shape_is_refused(old, new, message):
    text = problem()
    assert old in text
    with pytest.raises(GameFileError, match=message) as error:
        Game.from_problem(text.replace(old, new, 1), "task", source="some/file")
    assert str(error.value).startswith("some/file: ")


def test_two_objects_of_different_types_are_no_known_goal():
    text = problem("pick_two_obj_and_place").replace("?o2 MugType", "?o2 ForkType")
    with pytest.raises(GameFileError, match="six task types"):
        Game.from_problem(text, "task")


def test_comments_and_travel_costs_are_ignored():
    text = problem(more_facts="(= (total-cost) 0) (= (distance loc_bar_1 loc_bar_2) 4.5) ; (nonsense (\n")
    game, plain = Game.from_problem(text, "task"), Game.from_problem(problem(), "task")
    assert (game.receptacles, game.items, game.locations) == (plain.receptacles, plain.items, plain.locations)


def test_an_unknown_version_is_a_mistake_of_the_caller():
    with pytest.raises(ValueError, match="0.2.2"):
        Game.from_problem(problem(), "task", "0.3")


def test_texts_of_neither_version_are_refused_and_named(monkeypatch):
    grammar = GRAMMAR.format(task=GAMES["pick_and_place_simple"][1])
    with pytest.raises(ValueError, match=r"pddl_domain and grammar are of no known version.*0\.2\.2.*0\.4"):
        read_version(DOMAIN, grammar)
    known_version(monkeypatch)
    assert read_version(DOMAIN, grammar) == ("0.4", "put a mug in desk.")
    with pytest.raises(ValueError, match="its grammar is of no known version"):
        read_version(DOMAIN, grammar.replace("grammar ::", "grammar  ::"))
    with pytest.raises(ValueError, match="its pddl_domain is of no known version"):
        read_version("(define (domain other))", grammar)
    with pytest.raises(ValueError, match="0 sentences"):
        read_version(DOMAIN, "")
    assert read_version(DOMAIN, GRAMMAR.format(task='say \\"hi\\"')) == ("0.4", 'say "hi"')


def real_file(shared_data, tree):
    path = sorted((shared_data / "alfworld" / tree).glob("**/game.tw-pddl"))[0]
    return json.loads(path.read_text())


@pytest.mark.parametrize(("tree", "version"), [("json_2.1.1", "0.4"), ("legacy_0.2.2", "0.2.2")])
def test_official_files_tell_their_version(shared_data, tree, version):
    content = real_file(shared_data, tree)
    found, task = read_version(content["pddl_domain"], content["grammar"])
    assert found == version
    assert f"Your task is to: {task}" in content["grammar"]
    # Comments, blank lines and indentation may differ.
    loose = content["pddl_domain"].replace("\n", "\n\n  ;; a comment\n")
    assert read_version(loose, content["grammar"].replace("\n", "\r\n"))[0] == version


def test_any_changed_sentence_or_rule_is_noticed(shared_data):
    old, new = real_file(shared_data, "legacy_0.2.2"), real_file(shared_data, "json_2.1.1")
    for sentence in ("You close the {r.name}.", "take {o} from {r}", "Nothing", "sharp object"):
        changed = new["grammar"].replace(sentence, sentence + " now")
        if changed != new["grammar"]:
            with pytest.raises(ValueError, match="grammar is of no known version"):
                read_version(new["pddl_domain"], changed)
    with pytest.raises(ValueError, match="pddl_domain is of no known version"):
        read_version(new["pddl_domain"].replace("(isHot ?o)", "(isCool ?o)", 1), new["grammar"])
    with pytest.raises(ValueError, match=r"pddl_domain is that of 0\.2\.2, its grammar that of 0\.4"):
        read_version(old["pddl_domain"], new["grammar"])
