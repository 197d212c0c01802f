# Every target sets up the virtual environment when it is missing or older than the project's requirements.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check

.PHONY: demo test lint soundness faults bench bench-training clean

demo: $(VENV)/.core
	$(BIN)/smoothcert demo

test: lint
	$(BIN)/pytest

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

soundness: $(VENV)/.dev
	$(BIN)/pytest -m soundness --timeout 3600

faults: $(VENV)/.core
	$(BIN)/python benchmarks/faults.py

bench: $(VENV)/.bench
	$(BIN)/python benchmarks/samples.py
	$(BIN)/python benchmarks/throughput.py
	$(BIN)/python benchmarks/dataset.py

bench-training: $(VENV)/.bench
	$(BIN)/python benchmarks/training.py

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.core: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) install -q -c constraints.txt -e .
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) install -q -c constraints.txt -e ".[dev]"
	@touch $@ $(VENV)/.core

$(VENV)/.bench: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) install -q -c constraints.txt -e ".[bench]"
	@touch $@ $(VENV)/.core

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
