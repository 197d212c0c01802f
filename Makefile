# Every target sets up the virtual environment when it is missing or older than the project's requirements.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check

.PHONY: demo test lint soundness faults exits fuzz bench bench-training clean

demo: $(VENV)/.core
	$(BIN)/smoothcert demo

test: lint $(VENV)/.browser
	$(BIN)/pytest -n 3 --dist worksteal

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

soundness: $(VENV)/.dev
	$(BIN)/pytest -m soundness --timeout 3600

faults: $(VENV)/.dev
	$(BIN)/python benchmarks/faults.py

exits: $(VENV)/.dev
	$(BIN)/python benchmarks/exits.py

fuzz: $(VENV)/.core
	$(BIN)/python benchmarks/fuzz.py

bench: $(VENV)/.bench
	$(BIN)/python benchmarks/samples.py
	$(BIN)/python benchmarks/throughput.py
	$(BIN)/python benchmarks/dataset.py
	$(BIN)/python benchmarks/latency.py
	$(BIN)/python benchmarks/start.py

bench-training: $(VENV)/.bench
	$(BIN)/python benchmarks/training.py

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.core: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) install -q -c constraints.txt -e ".[train,report]"
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) install -q -c constraints.txt -e ".[dev]"
	@touch $@ $(VENV)/.core

$(VENV)/.bench: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) install -q -c constraints.txt -e ".[bench]"
	@touch $@ $(VENV)/.core

# The tests of the report page drive a Chromium. It is installed where that is possible; a failure stops nothing.
$(VENV)/.browser: | $(BIN)/python
	@for browser in chromium chromium-browser google-chrome; do \
	    if command -v $$browser >/dev/null; then touch $@; exit 0; fi; \
	done; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null \
	    && timeout 120 apt-get -qq update >/dev/null 2>&1 \
	    && timeout 600 apt-get -qq install -y chromium >/dev/null 2>&1; then touch $@; \
	else echo "browser tests are skipped without chromium"; fi

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
