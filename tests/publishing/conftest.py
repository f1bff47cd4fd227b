"""A stub of the Hub in place of the real one."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from hub_stub import HubStub


@pytest.fixture
def hub(monkeypatch):
    """The Hub of this test, with a token for it."""
    from huggingface_hub import constants

    stub = HubStub()
    monkeypatch.setattr(constants, "ENDPOINT", stub.url)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setenv("HF_TOKEN", stub.TOKEN)
    yield stub
    stub.close()
