"""`progpo verify webshop` on recordings of our own small shop, and on the real ones."""

import gzip
import json

import pytest
from webshop_shop import write_shop

from progpo_trl.cli import main
from progpo_trl.environments.webshop import Session, WebshopTasks, score_purchase

ACTIONS = ["search[oak chair]", "click[c000000001]", "click[red]", "nonsense", "click[features]", "click[< prev]"]


@pytest.fixture
def folder(tmp_path):
    return write_shop(tmp_path / "shop")


@pytest.fixture
def catalogue(folder):
    return WebshopTasks(folder).catalogue


def trace(catalogue, goal, actions=(*ACTIONS, "click[buy now]")):
    session = Session(catalogue, goal)

    def available():
        return {"has_search_bar": session.has_search_bar, "clickables": list(session.clickables())}

    recorded = {"goal": goal, "obs0": session.observation(), "av0": available(), "steps": []}
    for action in actions:
        bought = session.step(action)
        reward = bought.score if bought else 0.0
        recorded["steps"].append([action, session.observation(), reward, bought is not None, available()])
    return recorded


def reward_case(catalogue, goal, asin, options):
    position = catalogue.position(asin)
    product, price = catalogue.product(position), catalogue.price(position)
    reward = score_purchase(product, price, options, catalogue.goals[goal])
    return [
        goal,
        asin,
        options,
        reward.score,
        reward.parts() | ({} if reward.r_option is not None else {"r_option": None}),
    ]


def search(catalogue, query):
    return [[catalogue.product(position).asin, 1.5] for position in catalogue.search(query)]


@pytest.fixture
def recordings(catalogue):
    """What our engine says now, by file name."""
    return {
        "traces_seed0.json.gz": [trace(catalogue, goal) for goal in (0, 3, 5)],
        "reward_cases_seed0.json": [reward_case(catalogue, 2, "L000000004", {"shade": "black"})],
        "lucene_top50.json.gz": {query: search(catalogue, query) for query in ("chair", "lamp", "zzz")},
    }


@pytest.fixture
def check(folder, capsys):
    """Write files (JSON values or bytes) and run the command: (exit status, stdout lines, stderr)."""

    def run(files, data=folder):
        for name, content in files.items():
            raw = content if isinstance(content, bytes) else json.dumps(content).encode()
            packed = name.endswith(".gz") and raw is not content
            (folder / name).write_bytes(gzip.compress(raw) if packed else raw)
        status = main(["verify", "webshop", "--data", str(data)])
        captured = capsys.readouterr()
        return status, captured.out.splitlines(), captured.err

    return run


def test_the_real_recordings(shared_data, capsys):
    assert main(["verify", "webshop", "--data", str(shared_data / "webshop")]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "traces 130/130, rewards 2500/2500, searches 400/400"


def test_identical_recordings_and_any_subset(check, recordings):
    assert check({"lucene_top50.json.gz": recordings["lucene_top50.json.gz"]})[:2] == (
        0,
        ["traces 0/0, rewards 0/0, searches 3/3"],
    )
    assert check(recordings)[:2] == (0, ["traces 3/3, rewards 1/1, searches 3/3"])


def test_recordings_apart_from_the_shop(check, folder, recordings, tmp_path, monkeypatch):
    check(recordings)
    apart = tmp_path / "recordings"
    apart.mkdir()
    for name in recordings:
        (folder / name).rename(apart / name)
    monkeypatch.delenv("WEBSHOP_DATA", raising=False)
    status, _, error = check({}, apart)
    assert (status, error.count("\n")) == (2, 1)
    assert "no product file" in error
    monkeypatch.setenv("WEBSHOP_DATA", str(folder))
    assert check({}, apart)[:2] == (0, ["traces 3/3, rewards 1/1, searches 3/3"])


@pytest.mark.parametrize(
    ("step", "place", "value", "shown"),
    [
        (0, "obs0", "Hello", "reset, observation"),
        (0, "av0", {"has_search_bar": False, "clickables": ["search"]}, "reset, available"),
        (2, 1, "Hello", "step 2, 'click[c000000001]', observation"),
        (4, 2, 0.5, "step 4, 'nonsense', reward"),
        (7, 3, False, "step 7, 'click[buy now]', done"),
        (1, 4, {"has_search_bar": False, "clickables": []}, "step 1, 'search[oak chair]', available"),
    ],
)
def test_the_first_difference_of_an_episode(check, recordings, step, place, value, shown):
    changed = recordings["traces_seed0.json.gz"]
    recorded = changed[1] if step == 0 else changed[1]["steps"][step - 1]
    ours, recorded[place] = recorded[place], value
    status, lines, _ = check(recordings)
    assert status == 1
    assert lines[0].startswith("first difference: ")
    assert lines[0].endswith(f"traces_seed0.json.gz, trace 2 (goal 3), {shown}")
    assert lines[1:3] == [f"  recorded: {value!r}", f"  ours:     {ours!r}"]
    assert lines[-1] == "traces 2/3, rewards 1/1, searches 3/3"


def test_a_different_reward_part_and_search(check, recordings):
    recordings["reward_cases_seed0.json"][0][4]["r_att"] = 0.25
    recordings["lucene_top50.json.gz"]["chair"].reverse()
    status, lines, _ = check(recordings)
    assert status == 1
    assert "case 1 (goal 2, bought L000000004), parts" in lines[0]
    assert lines[-1] == "traces 3/3, rewards 0/1, searches 2/3"
    recordings["reward_cases_seed0.json"] = recordings["reward_cases_seed0.json"] * 2
    recordings["reward_cases_seed0.json"][1] = [*recordings["reward_cases_seed0.json"][0][:3], 0.123, {}]
    assert check(recordings)[1][-1] == "traces 3/3, rewards 0/2, searches 2/3"


def test_the_seed_is_in_the_name(check, folder):
    shop = WebshopTasks(folder, seed=5).catalogue
    assert check({"traces_seed5.json": [trace(shop, goal) for goal in range(12)]})[0] == 0
    (folder / "traces_seed5.json").rename(folder / "traces_seed0.json")
    assert check({})[0] == 1


START = {"goal": 0, "obs0": "", "av0": {}}
BAD = [
    ("traces_a.json", b"[1, 2", "is not JSON"),
    ("traces_a.json.gz", b"\x1f\x8b", "cannot be read"),
    ("traces_a.json", [], "holds no recordings of its kind"),
    ("traces_a.json", {}, "holds no recordings of its kind"),
    ("traces_a.json", [5], "trace 1: is not an object"),
    ("traces_a.json", [START | {"goal": 99, "steps": [1]}], "trace 1: its goal 99 is none of the shop's 12"),
    ("traces_a.json", [{"goal": True}], "trace 1: its goal True"),
    ("traces_a.json", [START | {"steps": []}], "trace 1: has no 'obs0', 'av0' or list of 'steps'"),
    ("traces_a.json", [START | {"steps": [["a", "b", 0, 0, {}]]}], "trace 1: has a step other"),
    ("reward_cases.json", {"a": 1}, "holds no recordings of its kind"),
    ("reward_cases.json", [[0, "C000000001", {}, 1]], "case 1: is not [goal, asin, options, reward, parts]"),
    ("reward_cases.json", [[0, "nowhere", {}, 1, {}]], "case 1: its product 'nowhere' is not in the shop"),
    ("reward_cases.json", [[0, "C000000001", {"size": 1}, 1, {}]], "case 1: has an option that is not text"),
    ("lucene_top50.json", [1], "holds no recordings of its kind"),
    ("lucene_top50.json", {"q": [["C000000001"]]}, "query 'q': is not a list of [asin, score]"),
    ("lucene_top50.json", {"q": [["nowhere", 1]]}, "query 'q': its product 'nowhere' is not in the shop"),
]


@pytest.mark.parametrize(("name", "content", "problem"), BAD)
def test_a_damaged_file_ends_in_one_clear_line(check, folder, name, content, problem):
    status, lines, error = check({name: content})
    assert (status, lines, error.count("\n")) == (2, [], 1)
    assert error.startswith(f"progpo verify: {folder / name}")
    assert problem in error


def test_nothing_to_verify_is_an_error(check, folder, tmp_path):
    for data, problem in ((folder, "has no recordings: traces*.json[.gz]"), (tmp_path / "no", "no such folder")):
        status, lines, error = check({}, data)
        assert (status, lines, error.count("\n")) == (2, [], 1)
        assert problem in error
