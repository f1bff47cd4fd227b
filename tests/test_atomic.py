"""Files are the old ones or the new ones, never half of one."""

import os

import pytest
from small_disk import files_of_at_most

from progpo_trl import atomic


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path):
    path = tmp_path / "summary.json"
    atomic.write_text(path, "old ä")

    def broken():
        with atomic.replacing(path) as partial:
            partial.write_text("half")
            assert path.read_text(encoding="utf-8") == "old ä"
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        broken()
    assert [p.name for p in tmp_path.iterdir()] == ["summary.json"]
    assert path.read_text(encoding="utf-8") == "old ä"
    atomic.write_text(path, "new")
    assert path.read_text() == "new"


def test_files_move_over_and_the_index_comes_last(tmp_path, monkeypatch):
    new, folder = tmp_path / "out" / ".saving" / "model", tmp_path / "out"
    (new / "ref").mkdir(parents=True)
    (folder / "ref").mkdir()
    for name in ("a.safetensors", "model.safetensors.index.json", "z.json", "ref/adapter.bin"):
        (new / name).write_text("new")
    (folder / "a.safetensors").write_text("old")
    (folder / "ref" / "stale").write_text("old")
    moved, replace = [], atomic.os.replace
    monkeypatch.setattr(atomic.os, "replace", lambda a, b: (moved.append(a.name), replace(a, b)))
    atomic.move_files(new, folder)
    assert moved == ["a.safetensors", "ref", "z.json", "model.safetensors.index.json"]
    assert (folder / "a.safetensors").read_text() == "new"
    assert [p.name for p in (folder / "ref").iterdir()] == ["adapter.bin"]
    assert not new.exists()


def test_flushing_what_is_not_there_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        atomic.flush(tmp_path / "nothing")


def test_a_full_disk_is_named_and_leaves_what_was_there(tmp_path):
    path = tmp_path / "summary.json"
    atomic.write_text(path, "old")
    with files_of_at_most(100), pytest.raises(OSError, match="summary.json") as caught:
        atomic.write_text(path, "x" * 101)
    assert caught.value.filename == str(path)
    assert [p.name for p in tmp_path.iterdir()] == ["summary.json"]
    assert path.read_text() == "old"


def test_what_is_no_plain_file_stays_what_it_is(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    end = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    atomic.write_text(pipe, "through \ud800", errors="replace")
    assert os.read(end, 100) == b"through ?"
    os.close(end)
    assert [p.name for p in tmp_path.iterdir()] == ["pipe"]
    assert pipe.is_fifo()
