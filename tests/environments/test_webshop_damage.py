"""Damage of a store that no size shows: it is one clear error that names file and record, whenever it is read."""

import pickle
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from webshop_shop import write_shop

from progpo_trl.environments.webshop.errors import ShopFileError
from progpo_trl.environments.webshop.files import find_files
from progpo_trl.environments.webshop.splits import GoalIds
from progpo_trl.environments.webshop.store import build_store, files_source, generated_source, open_store
from progpo_trl.environments.webshop.tasks import GeneratedWebshopTasks, ShopTasks

N = 130


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    return build_store(generated_source(N, 5), tmp_path_factory.mktemp("store") / "shop", seed=5)


@pytest.fixture
def copied(built, tmp_path):
    """A store to spoil."""
    return Path(shutil.copytree(built, tmp_path / "shop"))


def overwrite(folder, name, change):
    """Change the array in `<name>.npy`; its size stays."""
    array = np.load(folder / f"{name}.npy")
    change(array)
    np.save(folder / f"{name}.npy", array)


def shopping(tasks, goal):
    """One episode that looks at results, a product, its pages, and buys."""
    environment = tasks.make()
    first = environment.reset(tasks.ids.id(goal))
    for action in (f"search[{first.task}]", "click[next >]", "click[< prev]"):
        environment.step(action)
    environment.step(environment.step(f"search[{first.task}]").admissible[-1])
    for action in ("click[description]", "click[< prev]", "click[features]", "click[< prev]", "click[buy now]"):
        environment.step(action)


def test_a_record_that_no_longer_decodes_is_named(copied):
    tasks = GeneratedWebshopTasks(N, shop_seed=5, store=copied)
    goal = tasks.catalogue.goals[3]
    end = int(np.load(copied / "product_ends.npy")[goal.position])
    path = copied / "products.npy"
    content = bytearray(path.read_bytes())
    content[128 + end - 30] ^= 16  # 128 bytes are the file's header
    path.write_bytes(content)
    tasks.catalogue.products._kept.cache_clear()
    message = f"{copied / path.name}, record {goal.position + 1}: is damaged: its checksum does not fit. Build a store"
    with pytest.raises(ShopFileError, match=re.escape(message)) as caught:
        shopping(tasks, 3)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    with pytest.raises(ShopFileError, match=message):
        list(tasks.catalogue.products)


def problem_of(folder):
    """What a clear error says as the store in `folder` is opened and played in; None without one."""
    try:
        tasks = ShopTasks(GoalIds(open_store(folder)))
        for goal in range(0, len(tasks.catalogue.goals), 40):
            shopping(tasks, goal)
    except ShopFileError as error:
        return str(error)
    return None


@settings(max_examples=60)
@given(st.data())
def test_any_damage_gives_an_episode_or_one_clear_error(built, tmp_path_factory, data):
    folder = Path(shutil.copytree(built, tmp_path_factory.mktemp("damage") / "shop"))
    path = data.draw(st.sampled_from(sorted(folder.glob("*.npy"))))
    content = bytearray(path.read_bytes())
    place = data.draw(st.integers(0, min(127, len(content) - 1)) | st.integers(0, len(content) - 1))
    length = data.draw(st.sampled_from([1, 1, 8, 4096]))
    value = data.draw(st.sampled_from([None, 0, 0x41, 0xFF]))
    piece = content[place : place + length]
    content[place : place + length] = bytes([byte ^ 4 if value is None else value for byte in piece])
    path.write_bytes(content)
    problem = problem_of(folder)
    begins = rf"{re.escape(str(folder))}/\w+\.npy(, record \d+)?: "
    assert problem is None or re.fullmatch(rf"{begins}.+\. Build a store in another folder: progpo .*", problem), (
        problem
    )


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("index_documents", lambda a: a.fill(N), r"index_documents.npy: is damaged: '\w+' cannot be searched: "),
        (
            "index_starts",
            lambda a: a.__setitem__(slice(None), a[::-1].copy()),
            r"index_starts.npy: is damaged: '\w+' cannot be searched: ",
        ),
        ("index_total", lambda a: a.fill(N + 1), r"index_total.npy: is damaged: it holds impossible counts"),
        ("goals_synthetic_positions", lambda a: a.__setitem__(4, N), r"goals_synthetic_positions.npy, record 5: "),
        ("goals_synthetic_positions", lambda a: a.__setitem__(4, -1), r"goals_synthetic_positions.npy, record 5: "),
        ("asin_positions", lambda a: a.fill(N), r"asin_positions.npy, record 1: is damaged: it names product 130"),
        ("product_ends", lambda a: a.fill(7), r"products.npy, record \d+: is damaged"),
    ],
)
def test_places_that_are_not_there_are_named(copied, name, change, message):
    overwrite(copied, name, change)

    def use():
        shop = open_store(copied)
        for term in shop.goals[0].instruction.split():
            shop.search(term)
        shop.position("G000000000")

    with pytest.raises(ShopFileError, match=message):
        use()


def test_goals_that_their_product_does_not_have_are_named(tmp_path):
    folder = write_shop(tmp_path / "data")
    out = build_store(files_source(find_files(folder, human=True)), tmp_path / "shop")
    overwrite(out, "goals_human_choices", lambda array: array.fill(9))
    goals = open_store(out, human_goals=True).goals
    with pytest.raises(ShopFileError, match=r"goals_human_choices.npy, record 1: is damaged: it asks for what its"):
        goals[0]
    with pytest.raises(IndexError):
        goals[len(goals)]
    plain = next(i for i, product in enumerate(open_store(out).products) if product.instruction is None)
    overwrite(out, "goals_synthetic_positions", lambda array: array.fill(plain))
    with pytest.raises(ShopFileError, match=r"goals_synthetic_\w+.npy, record 3: is damaged"):
        open_store(out).goals[2]


@pytest.mark.parametrize(
    ("name", "array", "problem"),
    [
        ("prices", np.zeros(N, ">f8"), "holds >f8 of shape"),
        ("prices", np.zeros(N, "<u8"), "holds uint64 of shape"),
        ("prices", np.zeros((N // 2, 2)), r"holds float64 of shape \(65, 2\)"),
        ("asins", np.zeros(N * 10, "u1"), "holds uint8 of shape"),
    ],
)
def test_arrays_of_another_kind_are_refused(copied, name, array, problem):
    whole = (copied / f"{name}.npy").stat().st_size
    np.save(copied / f"{name}.npy", array)
    assert (copied / f"{name}.npy").stat().st_size == whole  # so that the manifest has nothing to object
    with pytest.raises(ShopFileError, match=rf"{name}.npy: is damaged: it {problem}"):
        open_store(copied)
