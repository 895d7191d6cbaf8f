# make run, make test: both set themselves up.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
TORCH ?=
PROCESSOR ?=
SECONDS ?= 600
SEED ?= 0
AREAS ?=
CASES ?=
PIP = $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: run test bench conformance data fuzz soak judge docs clean

run: $(VENV)/.installed
	@$(BIN)/python examples/kinship.py
	@echo
	@$(BIN)/python examples/neural_layer.py

test: $(VENV)/.dev $(if $(TORCH),$(VENV)/.torch)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy --python-version 3.14
	$(if $(PROCESSOR),$(BIN)/python tests/as_processor.py $(PROCESSOR)) $(BIN)/pytest -q -n 2 -m "not full"

conformance: $(VENV)/.dev
	$(BIN)/pytest -q -m full

fuzz: $(VENV)/.dev
	$(BIN)/python tests/fuzz/fuzz.py --seconds $(SECONDS) --seed $(SEED) $(if $(AREAS),--areas $(AREAS)) $(if $(CASES),--until $(CASES))

soak: $(VENV)/.dev
	$(BIN)/python tests/soak/soak.py --seconds $(SECONDS) --seed $(SEED)
	$(BIN)/python tests/soak/serving_soak.py --seconds $(SECONDS)
	$(if $(wildcard $(VENV)/lib/python*/site-packages/torch),$(BIN)/python tests/soak/distributed_soak.py --seconds $(SECONDS) --seed $(SEED))

judge: $(VENV)/.dev
	$(BIN)/python tests/judge/judge.py --venv $(VENV)-judge

bench: $(VENV)/.bench $(if $(TORCH),$(VENV)/.torch)
	$(BIN)/python benchmarks/run.py

data: $(VENV)/.installed
	$(BIN)/python examples/learning/get_data.py --folder data

docs: $(VENV)/.dev
	$(BIN)/python tests/seed_readme/make_map.py
	$(BIN)/python docs/make_errors.py
	$(BIN)/python -W error docs/build.py docs/_build

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis docs/_build

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed: make PYTHON=python3.12"; exit 1; }
	@echo "setting up $(VENV); this takes a little while, once"
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml | $(VENV)/bin/python
	$(PIP) --editable .
	@touch $@

$(VENV)/.dev: pyproject.toml | $(VENV)/bin/python
	$(PIP) --editable '.[dev]'
	@touch $@ $(VENV)/.installed

$(VENV)/.bench: pyproject.toml | $(VENV)/bin/python
	$(PIP) --editable '.[dev,bench]'
	@touch $@ $(VENV)/.dev $(VENV)/.installed

$(VENV)/.torch: | $(VENV)/bin/python
	$(PIP) 'torch==2.13.0'
	@touch $@
