# Everything a fresh machine needs: `make quickstart` trains, `make test` tests. Each sets up its own environment.
#
#   SEED=1 make quickstart              another seed
#   make test PYTEST_ARGS="-k grpo"     some tests; WORKERS=1 runs them in one process
#   make quickstart PIP_FLAGS="..."     options for pip, for example an index with CPU builds of torch

SEED ?= 0
VENV ?= .venv
PIP_FLAGS ?=
PYTEST_ARGS ?=
# Test processes side by side, each with whole files; every one of them loads torch (about 1 GB).
WORKERS ?= 2
PYTEST := python -m pytest -n $(WORKERS) --dist loadfile

# The first Python >= 3.11 on PATH; PYTHON=... chooses another.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)

# The oldest transformers we support and what it needs beside it; the rest is as in constraints.txt.
OLDEST := transformers==5.10.4 tokenizers==0.22.2 huggingface_hub==1.33.0
OLDEST_TESTS ?= tests/trainer

# Nothing is downloaded at run time, and tests never talk to a hub or a logging service.
export HF_HUB_OFFLINE := 1
export TOKENIZERS_PARALLELISM := false
# The models here are tiny. A second thread gains a third on an idle machine; on a busy one its spinning waits cost a
# factor of ten (0.65 s an update with two, 1.0 s with one; beside two busy processes 28 s and 3.4 s).
export OMP_NUM_THREADS ?= 1

.PHONY: help quickstart test test-oldest test-alfworld test-launchers lint benchmark clean python
.DEFAULT_GOAL := help

help: ## this list
	@grep -E '^[a-z-]+:.*##' $(firstword $(MAKEFILE_LIST)) | sed -E 's/:[^#]*## /\t/' | expand -t 16

quickstart: $(VENV)/.installed ## train the tiny agent on this CPU and show what it learned (SEED=0)
	$(VENV)/bin/progpo train --config recipes/quickstart.yaml --seed $(SEED) --output_dir runs/quickstart-seed$(SEED)

test: $(VENV)/.installed-dev ## run all tests that this machine can run
	WANDB_MODE=offline $(VENV)/bin/$(PYTEST) $(PYTEST_ARGS)

test-oldest: $(VENV)-oldest/.installed ## run the trainer's quick tests with the oldest transformers we support
	WANDB_MODE=offline $(VENV)-oldest/bin/$(PYTEST) -m "not slow" $(OLDEST_TESTS) $(PYTEST_ARGS)

test-alfworld: $(VENV)-alfworld/.installed ## compare with the real ALFWorld engine (compiles its planner)
	$(VENV)-alfworld/bin/python -m pytest -m alfworld $(PYTEST_ARGS)

test-launchers: $(VENV)-launchers/.installed ## train under ZeRO-2 and ZeRO-3 on this CPU (installs deepspeed)
	$(VENV)-launchers/bin/python -m pytest -m launchers $(PYTEST_ARGS)

lint: $(VENV)/.installed-dev ## check style
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .

# What needs no GPU and no data; each script's own help says more.
BENCHMARKS := alfworld_engine webshop_engine advantages training_breakdown generation update_cost update_memory

benchmark: $(VENV)/.installed-dev ## measure environments, credit assignment, generation and the update on this CPU
	set -e; for name in $(BENCHMARKS); do $(VENV)/bin/python benchmarks/$$name.py; done

clean: ## remove environments, caches and builds (runs/ stays)
	rm -rf $(VENV) $(VENV)-oldest $(VENV)-alfworld $(VENV)-launchers build dist .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# ---- environments --------------------------------------------------------------------------------------------------

python:
	@test -n "$(PYTHON)" || { echo "error: no Python >= 3.11 on PATH; install one, or name it: make PYTHON=/path/to/python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
		{ echo "error: $(PYTHON) is missing or older than 3.11; name another: make PYTHON=python3.12" >&2; exit 1; }

%/bin/python: | python
	$(PYTHON) -m venv $* || { rm -rf $*; echo "error: no environment; Debian and Ubuntu need: apt install python3-venv" >&2; exit 1; }

$(VENV)/.installed: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(VENV)/bin/python -m pip install --quiet $(PIP_FLAGS) --constraint constraints.txt --editable .
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(VENV)/bin/python -m pip install --quiet $(PIP_FLAGS) --constraint constraints.txt --editable ".[dev]"
	touch $@

$(VENV)-oldest/.installed: pyproject.toml constraints.txt | $(VENV)-oldest/bin/python
	grep -viE '^(transformers|tokenizers|huggingface_hub)==' constraints.txt > $(VENV)-oldest/constraints.txt
	$(VENV)-oldest/bin/python -m pip install --quiet $(PIP_FLAGS) --constraint $(VENV)-oldest/constraints.txt \
		$(OLDEST) --editable ".[dev]"
	touch $@

$(VENV)-alfworld/.installed: pyproject.toml constraints.txt | $(VENV)-alfworld/bin/python
	$(VENV)-alfworld/bin/python -m pip install --quiet $(PIP_FLAGS) --constraint constraints.txt \
		--editable ".[dev,alfworld]"
	touch $@

# DeepSpeed compiles nothing here: its CPU path needs none of its kernels.
$(VENV)-launchers/.installed: pyproject.toml constraints.txt | $(VENV)-launchers/bin/python
	DS_BUILD_OPS=0 $(VENV)-launchers/bin/python -m pip install --quiet $(PIP_FLAGS) --constraint constraints.txt \
		--editable ".[dev,deepspeed]"
	touch $@
