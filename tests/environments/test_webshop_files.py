"""Reading the official files: what is found, what is left out, and that damage is named and never anything else."""

import copy
import gzip
import json
import logging
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from webshop_shop import ATTRIBUTES, HUMAN, ITEMS, NOUNS, item, write_shop

from progpo_trl.environments.webshop import ShopFileError, WebshopTasks
from progpo_trl.environments.webshop import files as files_module
from progpo_trl.environments.webshop.files import find_files, read_mapping, read_products, read_records
from progpo_trl.environments.webshop.products import document, parse_product


def read(folder, **options):
    return list(read_products(find_files(folder, human=True), **options))


@pytest.mark.parametrize("suffix", ["_1000", ""])
@pytest.mark.parametrize("packed", [False, True])
def test_official_names_plain_and_packed(tmp_path, suffix, packed):
    folder = write_shop(tmp_path, suffix=suffix, packed=packed)
    skipped = Counter()
    products = read(folder, skipped=skipped)
    assert [product.asin for product in products] == [entry["asin"] for entry in ITEMS[:5]]
    assert skipped == {"no valid id": 2, "repeated id": 1}
    assert WebshopTasks(folder).data_summary()["skipped"] == dict(skipped)


def test_a_record_becomes_a_product(tmp_path):
    oak, pine, bench, lamp, _ = read(write_shop(tmp_path))
    assert (oak.prices, oak.price_tag) == ((25.5,), "$25.5")
    assert (pine.prices, pine.price_tag) == ((10.0, 20.0), "$10.0 to $20.0")
    assert (bench.prices, bench.price_tag) == ((100.0,), "$100.0")
    assert oak.options == {"color": ("red", "navy | white", "light green"), "size": ("large", "x-large")}
    assert lamp.options == {"shade": ("black",)}
    assert (oak.query, oak.category) == ("chairs", "garden")
    assert pine.bullets == (" \n ",)
    assert [request.options for request in oak.human] == [("red",), (), ("large", "blue")]
    assert parse_product(ITEMS[0], None, []).attributes == ("DUMMY_ATTR",)
    assert parse_product(ITEMS[0], None, []).instruction is None
    assert document(oak) == (
        "oak chair about the oak chair. easy clean.  color: red, navy | white, light green, and size: large, x-large"
    )
    assert parse_product(item("X", "Y", pricing="$1,050.5 to $2,000 to $9"), None, []).prices == (1050.5, 2000.0)


def test_the_small_set_is_taken_first_and_the_full_one_serves_it(tmp_path):
    write_shop(tmp_path, suffix="", items=ITEMS[:1], attributes=ATTRIBUTES | {"C000000001": {"attributes": []}})
    assert find_files(tmp_path).items.name == "items_shuffle.json"
    write_shop(tmp_path, items=ITEMS[:2], attributes=None, nouns=None)
    small = find_files(tmp_path)
    assert (small.items.name, small.attributes.name) == ("items_shuffle_1000.json", "items_ins_v2.json")
    assert find_files(tmp_path, size="all").items.name == "items_shuffle.json"
    with pytest.raises(ValueError, match="size must be one of 1000, all, got '100'"):
        WebshopTasks(tmp_path, size=100)


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("items", r"no product file \(items_shuffle_1000.json\[.gz\] or items_shuffle.json\[.gz\]\)"),
        ("attributes", r"items_ins_v2_1000.json\[.gz\]"),
        ("nouns", "python -m progpo_trl.environments.webshop.title_nouns --data"),
        ("human", r"items_human_ins.json\[.gz\]"),
    ],
)
def test_a_missing_file_is_named(tmp_path, missing, message):
    with pytest.raises(ShopFileError, match=message):
        WebshopTasks(write_shop(tmp_path, **{missing: None}), human_goals=True)


def test_no_folder(tmp_path, monkeypatch):
    monkeypatch.delenv("WEBSHOP_DATA", raising=False)
    with pytest.raises(FileNotFoundError, match="set WEBSHOP_DATA"):
        WebshopTasks()
    with pytest.raises(ShopFileError, match="no such folder"):
        WebshopTasks(tmp_path / "nowhere")
    monkeypatch.setenv("WEBSHOP_DATA", str(write_shop(tmp_path)))
    assert len(WebshopTasks().catalogue) == 5


BAD_RECORDS = [
    ("text", "is not an object"),
    (None, "is not an object"),
    (item("A", "B") | {"asin": 5}, "'asin' is not text"),
    ({k: v for k, v in item("A", "B").items() if k != "asin"}, "has no 'asin'"),
    (item("A", "B"), "title_nouns_1000.json has no title nouns for 'A'; was it made for other products?"),
    *(
        ({k: v for k, v in ITEMS[1].items() if k != field}, f"has no '{field}'")
        for field in ("name", "full_description", "query", "category", "product_category")
    ),
    *(
        (dict(ITEMS[1], **{field: 7}), f"'{field}' is not text")
        for field in ("name", "full_description", "query", "category", "product_category", "pricing")
    ),
    (dict(ITEMS[1], small_description=[1]), "'small_description' is not a list of texts"),
    (dict(ITEMS[1], small_description=None), "'small_description' is not a list of texts"),
    (dict(ITEMS[1], pricing="ten dollars"), "'pricing' is 'ten dollars', not like $5.00"),
    (dict(ITEMS[1], pricing="$1.2.3"), "'pricing' is '$1.2.3'"),
    (dict(ITEMS[1], pricing="$" + "9" * 400), "'pricing' is"),
    (dict(ITEMS[1], customization_options="x"), "'customization_options' is not an object"),
    (dict(ITEMS[1], customization_options={"Size": "large"}), "option 'Size' is not a list"),
    (dict(ITEMS[1], customization_options={"Size": [5]}), "a choice of option 'Size' is not an object"),
    (dict(ITEMS[1], customization_options={"Size": [{"value": 5}]}), "'value' is not text"),
]


@pytest.mark.parametrize(("record", "problem"), BAD_RECORDS)
def test_a_bad_record_is_named_by_number_or_skipped(tmp_path, record, problem, caplog):
    folder = write_shop(tmp_path, items=[ITEMS[0], record, ITEMS[3]])
    with pytest.raises(ShopFileError) as caught:
        read(folder)
    assert str(caught.value).startswith(f"{folder / 'items_shuffle_1000.json'}, record 2: {problem}")
    with caplog.at_level(logging.WARNING):
        assert [product.asin for product in read(folder, on_error="skip")] == ["C000000001", "L000000004"]
    assert f"record 2: {problem}" in caplog.text


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"attributes": ATTRIBUTES | {"C000000001": []}}, "its entry among the attributes is not an object"),
        ({"attributes": ATTRIBUTES | {"C000000001": {"attributes": "wood"}}}, "'attributes' is not a list of texts"),
        ({"attributes": ATTRIBUTES | {"C000000001": {"instruction": 1}}}, "'instruction' is not text"),
        (
            {"attributes": ATTRIBUTES | {"C000000001": {"instruction": "x", "instruction_attributes": []}}},
            "an instruction without 'instruction_attributes'",
        ),
        ({"nouns": NOUNS | {"C000000001": "oak"}}, "'title nouns' is not a list of texts"),
        ({"human": {"C000000001": {}}}, "its entry in items_human_ins.json is not a list"),
        ({"human": {"C000000001": [5]}}, "a human instruction is not an object"),
        ({"human": {"C000000001": [{"instruction": "x"}]}}, "'instruction_attributes' is not a list of texts"),
    ],
)
def test_bad_entries_of_the_other_files_are_named_too(tmp_path, changes, problem):
    with pytest.raises(ShopFileError, match=f"items_shuffle_1000.json, record 1: {problem}"):
        read(write_shop(tmp_path, **changes))


def test_files_that_are_no_such_list_or_object(tmp_path):
    path = tmp_path / "items_shuffle_1000.json"
    for content, problem in [
        ("", "is not a JSON list"),
        ("{}", "is not a JSON list"),
        ("[", "after record 0|record 1"),
        ('[{"a": 1}', "cut or damaged after record 1"),
        ('[{"a": 1} {"a": 1}]', "cut or damaged after record 1"),
        ('[{"a": 1}, {"a": ', "record 2: is not JSON"),
        ('[{"a": 1},]', "record 2: is not JSON"),
        ('[{"a": 1}] x', "goes on after its list of 1 records"),
        ("[" * 100_000, "record 1: is not JSON"),
    ]:
        path.write_text(content)
        with pytest.raises(ShopFileError, match=problem):
            list(read_records(path))
    path.write_bytes(b'[{"a": "\xff"}]')
    with pytest.raises(ShopFileError, match="cannot be read after record 0: 'utf-8' codec"):
        list(read_records(path))
    path.write_text("[ ]")
    with pytest.raises(ShopFileError, match="holds no product"):
        read(write_shop(tmp_path, items=[]))
    path.write_text("[]")
    with pytest.raises(ShopFileError, match="is JSON, but not an object"):
        read_mapping(path)
    path.write_text('{"a": 1,\n"b": }')
    with pytest.raises(ShopFileError, match="is not JSON: .*line 2"):
        read_mapping(path)


def test_records_that_are_cut_by_the_end_of_a_piece(tmp_path, monkeypatch):
    path = tmp_path / "list.json"
    records = [item(f"A{n}", "n\u00e4me \u203a" * (n % 7), numbers=[n, -1.5e3, None]) for n in range(40)]
    path.write_text(json.dumps(records, indent=1, ensure_ascii=False), encoding="utf-8")
    for piece in (1, 7, 100, 1 << 20):
        monkeypatch.setattr(files_module, "_PIECE", piece)
        assert list(read_records(path)) == list(enumerate(records, start=1))
    monkeypatch.setattr(files_module, "_PIECE", 100)
    monkeypatch.setattr(files_module, "_LONGEST_RECORD", 1000)
    path.write_text('[{"a": "' + "x" * 5000)
    with pytest.raises(ShopFileError, match="record 1: is not JSON"):
        list(read_records(path))


def test_a_packed_file_that_is_cut_or_no_gzip(tmp_path):
    rng = random.Random(0)
    noise = ["".join(rng.choices("abcdefgh", k=9000)) for _ in range(200)]
    path = write_shop(tmp_path, packed=True, items=[dict(ITEMS[0], name=text) for text in noise]) / (
        "items_shuffle_1000.json.gz"
    )
    whole = path.read_bytes()
    for length in (0, 5, 200, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(ShopFileError, match=r"items_shuffle_1000.json.gz: (cannot be read|is not a JSON list)"):
            list(read_records(path))
    path.write_bytes(b"[]" + whole)
    with pytest.raises(ShopFileError, match="cannot be read"):
        list(read_records(path))


CONTENT = {"items": ITEMS[:5], "attributes": ATTRIBUTES, "nouns": NOUNS, "human": HUMAN}
VALUES = st.sampled_from(
    [None, True, 0, -1.5, "", "x", "$5.00", [], ["y"], [["z"]], {}, {"value": 3}, "\ud800", float("nan")]
)


def spots(value, path=()):
    """Paths to all places in a JSON value."""
    yield path
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from spots(inner, (*path, key))


SPOTS = [(kind, path) for kind, content in CONTENT.items() for path in spots(content)]


def open_or_refused(folder, human=True):
    """The tasks of the shop in `folder`, or None when it is refused with one line that names a file there."""
    try:
        return WebshopTasks(folder, human_goals=human)
    except ShopFileError as error:
        message = str(error)
    assert message.startswith(str(folder))
    assert "\n" not in message
    return None


@given(st.sampled_from(SPOTS), VALUES, st.booleans())
def test_any_change_of_any_value_gives_a_shop_or_a_clear_error(tmp_path_factory, spot, value, human):
    kind, path = spot
    holder = {"root": copy.deepcopy(CONTENT[kind])}
    inner, last = holder, "root"
    for key in path:
        inner, last = inner[last], key
    inner[last] = value
    folder = write_shop(tmp_path_factory.mktemp("shop"), **{kind: holder["root"] if holder["root"] is not None else 0})
    tasks = open_or_refused(folder, human)
    for split, indices in tasks.splits.items() if tasks else ():
        if len(indices):
            environment = tasks.make()
            first = environment.reset(tasks.task_ids(split)[0])
            for action in (f"search[{first.task}]", "search[chair lamp bench]", "click[c000000001]", "click[buy now]"):
                assert isinstance(environment.step(action).text, str)


@given(st.data())
def test_damaged_bytes_give_a_shop_or_a_clear_error(tmp_path_factory, data):
    folder = write_shop(tmp_path_factory.mktemp("shop"), packed=data.draw(st.booleans()))
    path = data.draw(st.sampled_from(sorted(folder.iterdir())))
    content = bytearray(path.read_bytes())
    if data.draw(st.booleans()):
        del content[data.draw(st.integers(0, len(content) - 1)) :]
    else:
        content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    path.write_bytes(content)
    open_or_refused(folder)


def test_gzip_is_known_by_its_name_only(tmp_path):
    folder = write_shop(tmp_path)
    path = folder / "title_nouns_1000.json"
    path.write_bytes(gzip.compress(path.read_bytes()))
    with pytest.raises(ShopFileError, match="title_nouns_1000.json: cannot be read"):
        read(folder)
