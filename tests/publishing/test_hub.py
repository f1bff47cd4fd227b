"""The upload against a stub of the Hub: one commit with every file, and one clear line for each way it can fail."""

import pytest
from huggingface_hub import constants

from progpo_trl.publishing.errors import PublishError
from progpo_trl.publishing.hub import upload


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "README.md").write_text("---\nlibrary_name: peft\n---\n\n# agent\n")
    (tmp_path / "config.yaml").write_text("seed: 0\n")
    (tmp_path / "adapter_model.safetensors").write_bytes(bytes(range(256)) * 10)
    return tmp_path


def test_one_commit_with_every_file(hub, folder):
    assert upload(folder, "alice/agent", message="First") == f"{hub.url}/alice/agent"
    assert hub.files == {path.name: path.read_bytes() for path in folder.iterdir()}
    assert hub.commits == ["First"]
    assert f"Bearer {hub.TOKEN}" in hub.tokens


def test_an_upload_removes_what_an_earlier_one_left_and_nothing_else(hub, folder):
    notes = {".gitattributes", "NOTES.md", "evaluation-notes.json", "model-card.safetensors", "images/config.json"}
    hub.files |= dict.fromkeys(notes, b"mine")
    first = {"adapter_config.json", "evaluation.json", "evaluation-2.json", "prompt.jinja", "tokenizer.json"}
    for name in first:
        (folder / name).write_text("{}")
    upload(folder, "alice/agent")
    assert set(hub.files) == {path.name for path in folder.iterdir()} | notes
    # the same agent again: a whole model in two parts, with one evaluation
    for name in ("adapter_config.json", "adapter_model.safetensors", "evaluation-2.json", "prompt.jinja"):
        (folder / name).unlink()
    for name in ("config.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"):
        (folder / name).write_bytes(b"{}")
    upload(folder, "alice/agent")
    assert hub.files == {path.name: path.read_bytes() for path in folder.iterdir()} | dict.fromkeys(notes, b"mine")
    assert len(hub.commits) == 2


@pytest.mark.parametrize(
    ("path", "status", "said"),
    [
        ("/api/", 401, "does not accept the token: run `hf auth login`"),
        ("/api/", 403, "may not write to alice/agent"),
        ("/commit/", 403, "may not write to alice/agent"),
        ("/preupload/", 404, "is not there, or the token may not see it"),
        ("/commit/", 400, "refused the upload (400: no such licence)"),
    ],
)
def test_what_the_hub_refuses(path, status, said, hub, folder):
    hub.failing[path] = (status, "no such licence")
    with pytest.raises(PublishError) as caught:
        upload(folder, "alice/agent")
    message = str(caught.value)
    assert said in message
    assert message.endswith(f"nothing was uploaded, the prepared folder is {folder}")
    assert "\n" not in message
    assert hub.TOKEN not in message
    assert hub.commits == []


def test_a_public_repository_does_not_become_the_private_one_asked_for(hub, folder):
    hub.failing["/api/repos/create"] = (409, "You already created this model repo")
    with pytest.raises(PublishError, match="is there already and is public"):
        upload(folder, "alice/agent", private=True)
    assert hub.files == {}
    del hub.failing["/api/repos/create"]
    upload(folder, "alice/agent", private=True)
    assert hub.private
    assert len(hub.commits) == 1


def test_without_a_token_or_a_network(hub, folder, monkeypatch):
    hub.close()
    with pytest.raises(PublishError, match="the Hub cannot be reached"):
        upload(folder, "alice/agent")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(PublishError, match="HF_HUB_OFFLINE is set: unset it to upload; nothing was uploaded"):
        upload(folder, "alice/agent")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(folder / "no-token"))
    with pytest.raises(PublishError, match="no Hugging Face token: run `hf auth login`"):
        upload(folder, "alice/agent")
