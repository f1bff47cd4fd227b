"""Python, packages and their versions, the GPU as torch sees it, W&B and the Hub."""

from __future__ import annotations

import netrc
import os
import platform
import shutil
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from progpo_trl.doctor.findings import OK, PROBLEM, WARNING, Case, Finding

_PYTHON = ">=3.11"
_TESTED_TRANSFORMERS = ("5.10.4", "5.24")
_PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"


def version_of(name: str) -> str | None:
    """The installed version of a package, or None."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def check_python(case: Case) -> Iterator[Finding]:
    """3.11 or newer."""
    version = platform.python_version()
    if SpecifierSet(_PYTHON).contains(version, prereleases=True):
        yield Finding(OK, "python", version)
    else:
        yield Finding(PROBLEM, "python", f"{version}, {_PYTHON} is needed", "make an environment with a newer Python")


def check_packages(case: Case) -> Iterator[Finding]:
    """What progpo_trl requires, and the versions of transformers that were tested."""
    wrong, fine = [], []
    for requirement in _requirements(None):
        installed = version_of(requirement.name)
        wanted = f"{requirement.name}{requirement.specifier}"
        if installed is None:
            wrong.append(Finding(PROBLEM, requirement.name, "is not installed", f"pip install '{wanted}'"))
        elif not requirement.specifier.contains(installed, prereleases=True):
            text = f"{installed} is installed, {requirement.specifier} is needed"
            wrong.append(Finding(PROBLEM, requirement.name, text, f"pip install '{wanted}'"))
        else:
            fine.append(f"{requirement.name} {installed}")
    yield from wrong
    yield Finding(OK, "packages", ", ".join(fine))
    from packaging.version import Version

    transformers = version_of("transformers")
    if transformers and Version(transformers).release[:2] > Version(_TESTED_TRANSFORMERS[1]).release[:2]:
        text = f"{transformers} is newer than what was tested ({' to '.join(_TESTED_TRANSFORMERS)})"
        yield Finding(
            WARNING, "transformers", text, f"pip install 'transformers<={_TESTED_TRANSFORMERS[1]}' if it fails"
        )


def _requirements(extra: str | None) -> list[Requirement]:
    """What this package requires, always or with an extra; of its metadata, or of the checkout it runs from."""
    try:
        lines = metadata.requires("progpo_trl") or []
        found = [Requirement(line) for line in lines]
        environment = {"extra": extra or ""}
        kept = [r for r in found if r.marker is None or r.marker.evaluate(environment)]
        return [r for r in kept if (r.marker is None) == (extra is None)]
    except metadata.PackageNotFoundError:
        project = tomllib.loads(_PYPROJECT.read_text(encoding="utf-8"))["project"]
        lines = project["dependencies"] if extra is None else project["optional-dependencies"][extra]
        return [Requirement(line) for line in lines]


def check_torch(case: Case) -> Iterator[Finding]:
    """The devices, their memory, bfloat16."""
    import torch

    if case.settings.get("use_cpu"):
        yield Finding(OK, "torch", f"{torch.__version__}; the recipe trains on the CPU")
        return
    if torch.cuda.is_available():
        for i in range(torch.cuda.device_count()):
            free, total = torch.cuda.mem_get_info(i)
            name = torch.cuda.get_device_name(i)
            yield Finding(OK, f"GPU {i}", f"{name}, {free / 1e9:.0f} of {total / 1e9:.0f} GB free")
            if free < 0.5 * total:
                yield Finding(
                    WARNING, f"GPU {i}", "more than half of its memory is taken", "see nvidia-smi for who has it"
                )
        if not torch.cuda.is_bf16_supported():
            status = PROBLEM if case.settings.get("bf16") else WARNING
            advice = "set bf16: false, and fp16: true or dtype: float32"
            yield Finding(status, "bfloat16", "these GPUs do not compute in it", advice)
        return
    text = f"{torch.__version__} sees no GPU"
    if shutil.which("nvidia-smi"):
        advice = "install the CUDA build of torch, and see that its CUDA is not newer than the driver's"
        yield Finding(PROBLEM if case.recipe else WARNING, "torch", f"{text}, but there is an NVIDIA driver", advice)
    elif case.recipe:
        advice = "run it on a machine with a GPU, or train the tiny policy: progpo train --config quickstart"
        yield Finding(PROBLEM, "torch", f"{text}, and the recipe does not say use_cpu", advice)
    else:
        yield Finding(WARNING, "torch", text, "enough for the quickstart; real models need a GPU")


def check_vllm(case: Case) -> Iterator[Finding]:
    """Installed, within TRL's range, and content with this transformers."""
    wanted = bool(case.settings.get("use_vllm"))
    installed = version_of("vllm")
    specifier = next((r.specifier for r in _of_trl("vllm") if r.name == "vllm"), None)
    allowed = f"vllm{specifier}" if specifier is not None else "vllm"
    if installed is None:
        if wanted:
            advice = f"pip install '{allowed}', or set use_vllm: false (the same run, slower)"
            yield Finding(PROBLEM, "vllm", "is not installed, and the recipe says use_vllm", advice)
        elif case.recipe is None:
            yield Finding(OK, "vllm", f"is not installed; with it ({allowed}) GPUs generate several times faster")
        return
    status = PROBLEM if wanted else WARNING
    if specifier is not None and not specifier.contains(installed, prereleases=True):
        yield Finding(status, "vllm", f"{installed} is outside of TRL's range {specifier}", f"pip install '{allowed}'")
    else:
        yield Finding(OK, "vllm", installed)
    for requirement in _of(metadata.requires("vllm") or []):
        have = version_of(requirement.name)
        if requirement.name in ("transformers", "torch") and have and not requirement.specifier.contains(have, True):
            text = f"{installed} wants {requirement.name}{requirement.specifier}, and {have} is installed"
            yield Finding(status, "vllm", text, f"pip install '{requirement.name}{requirement.specifier}'")


def _of_trl(extra: str) -> list[Requirement]:
    try:
        return [
            r
            for r in map(Requirement, metadata.requires("trl") or [])
            if r.marker and r.marker.evaluate({"extra": extra})
        ]
    except metadata.PackageNotFoundError:
        return []


def _of(lines: list[str]) -> list[Requirement]:
    return [r for r in map(Requirement, lines) if r.marker is None or r.marker.evaluate({"extra": ""})]


def check_extras(case: Case) -> Iterator[Finding]:
    """Packages that only some settings need."""
    needs = {
        "deepspeed": case.settings.get("deepspeed") or case.launcher.get("distributed_type") == "DEEPSPEED",
        "bitsandbytes": case.settings.get("load_in_4bit") or case.settings.get("load_in_8bit"),
        "trackio": "trackio" in _trackers(case),
        "textworld": case.environment.get("engine") == "textworld",
    }
    extras = {"bitsandbytes": "quantization", "textworld": "alfworld"}
    for name, needed in needs.items():
        installed = version_of(name)
        if needed and installed is None:
            advice = f"pip install 'progpo_trl[{extras.get(name, name)}]'"
            yield Finding(PROBLEM, name, "is needed by these settings and is not installed", advice)
        elif needed:
            yield Finding(OK, name, str(installed))


def _trackers(case: Case) -> list[str]:
    asked = case.settings.get("report_to") or []
    return [asked] if isinstance(asked, str) else list(asked)


def check_wandb(case: Case) -> Iterator[Finding]:
    """Logged in, or offline on purpose. The key itself is never shown."""
    mode = os.environ.get("WANDB_MODE", "").lower()
    wanted = bool({"wandb", "all"} & set(_trackers(case)))
    if case.recipe and not wanted:
        return
    if mode in ("offline", "disabled", "dryrun"):
        yield Finding(OK, "wandb", f"WANDB_MODE={mode}: nothing is sent (`wandb sync` does it later)")
        return
    if _wandb_key():
        yield Finding(OK, "wandb", "a key is there (whether it is valid was not asked)")
        return
    advice = "run `wandb login`, or set WANDB_MODE=offline, or report_to: none"
    yield Finding(WARNING if wanted else OK, "wandb", "not logged in", advice if wanted else "")


def _wandb_key() -> bool:
    if os.environ.get("WANDB_API_KEY"):
        return True
    host = os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai").rpartition("//")[2].partition("/")[0]
    try:
        return netrc.netrc(os.environ.get("NETRC")).authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False


def check_hub(case: Case) -> Iterator[Finding]:
    """Whether there is a token. It is never shown."""
    from huggingface_hub import constants, get_token

    pushes = bool(case.settings.get("push_to_hub"))
    if constants.is_offline_mode():
        status = PROBLEM if pushes else OK
        advice = "unset it, or set push_to_hub: false" if pushes else ""
        yield Finding(status, "Hugging Face Hub", "HF_HUB_OFFLINE is set: only the cache is used", advice)
    elif get_token():
        yield Finding(OK, "Hugging Face Hub", "a token is there (whether it is valid was not asked)")
    elif pushes:
        yield Finding(PROBLEM, "Hugging Face Hub", "no token, and the recipe says push_to_hub", "run `hf auth login`")
    else:
        yield Finding(OK, "Hugging Face Hub", "no token: public models can be loaded, nothing can be published")
