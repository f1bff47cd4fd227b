"""The command that makes the file of title nouns."""

import gzip
import json
import sys

import pytest

from progpo_trl.environments.webshop import title_nouns
from progpo_trl.environments.webshop.errors import ShopFileError
from progpo_trl.environments.webshop.files import find_files, read_products
from progpo_trl.environments.webshop.generate import generate_records


@pytest.fixture
def shop(tmp_path):
    """A folder with the products and attributes of a generated shop, one id twice, and the nouns they should get."""
    made = list(generate_records(30))
    items = [record.item for record in made]
    with gzip.open(tmp_path / "items_shuffle_1000.json.gz", "wt", encoding="utf-8") as file:
        json.dump([*items, {**items[0], "name": "again"}], file)
    attributes = {record.item["asin"]: record.instruction for record in made}
    (tmp_path / "items_ins_v2_1000.json").write_text(json.dumps(attributes), encoding="utf-8")
    return tmp_path, {item["asin"]: item["name"].lower().split() for item in items}


def words(titles):
    return (title.lower().split() for title in titles)


def test_the_file_completes_the_data(shop):
    folder, expected = shop
    items = title_nouns.find_items(folder)
    out = folder / "title_nouns_1000.json"
    assert title_nouns.write_nouns(items, words, out) == 30
    assert json.loads(out.read_text("utf-8")) == expected
    assert {product.asin: list(product.nouns) for product in read_products(find_files(folder))} == expected


def test_a_damaged_record_is_named_and_leaves_no_file(shop):
    folder, _ = shop
    items = folder / "items_shuffle.json"
    items.write_text('[{"asin": "A1", "name": "mug"}, {"asin": "A2"}]', encoding="utf-8")
    with pytest.raises(ShopFileError, match=r"items_shuffle.json, record 2: has no 'asin' or no 'name'"):
        title_nouns.write_nouns(title_nouns.find_items(folder, "all"), words, folder / "nouns.json")
    assert not list(folder.glob("nouns.json*"))


def test_without_spacy_the_extra_is_named(shop, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "spacy", None)
    assert title_nouns.main(["--data", str(shop[0])]) == 2
    assert 'pip install "progpo_trl[webshop-nouns]"' in capsys.readouterr().err
    assert not (shop[0] / "title_nouns_1000.json").exists()


def test_without_products_the_expected_files_are_named(tmp_path, capsys):
    assert title_nouns.main(["--data", str(tmp_path)]) == 2
    assert "items_shuffle_1000.json" in capsys.readouterr().err


def test_a_pipeline_of_spacy(tmp_path):
    spacy = pytest.importorskip("spacy")
    pipeline = spacy.blank("en")
    with pytest.raises(ValueError, match="x tags no parts of speech"):
        title_nouns.tagger_of(pipeline, "x")
    rules = pipeline.add_pipe("attribute_ruler")
    for word, tag in (("mug", "NOUN"), ("Ada", "PROPN"), ("red", "ADJ")):
        rules.add([[{"TEXT": word}]], {"POS": tag})
    assert list(title_nouns.tagger_of(pipeline, "x")(["Ada red mug, mug", "red"])) == [["ada", "mug", "mug"], []]
    pipeline.to_disk(tmp_path / "model")
    assert list(title_nouns.spacy_tagger(str(tmp_path / "model"))(["red mug"])) == [["mug"]]
    with pytest.raises(OSError, match="python -m spacy download"):
        title_nouns.spacy_tagger("no_such_model")
