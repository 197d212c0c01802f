# Every target sets up the virtual environment when it is missing or older than the project's requirements.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check

.PHONY: demo test test-oldest test-newest package lint docs soundness faults network exits fuzz bench bench-training bench-serving serving-faults clean

demo: $(VENV)/.core
	$(BIN)/smoothcert demo

test: lint $(VENV)/.browser
	$(BIN)/pytest -n 3 --dist worksteal

# The tests that need no optional package, with the oldest and the newest versions of everything that is supported.
ENDS := tests/certify tests/classifiers tests/cli tests/noise tests/report tests/sampling tests/stats tests/store tests/test_python_api.py
TOOLS := pytest pytest-timeout pytest-xdist hypothesis mpmath statsmodels scikit-learn hatchling

test-oldest test-newest: test-%:
	$(PYTHON) -m venv --clear $(VENV)-$*
	$(VENV)-$*/bin/python -m pip install -q uv
	$(VENV)-$*/bin/uv pip install -q --python $(VENV)-$*/bin/python --resolution \
	    $(if $(filter oldest,$*),lowest-direct,highest) -e ".[train,report]"
	$(VENV)-$*/bin/python -m pip install -q $(TOOLS)
	$(VENV)-$*/bin/pytest -n 3 --dist worksteal $(ENDS)

# The wheel and the source archive, each installed into an empty environment and tested there.
package: $(VENV)/.dev
	rm -rf dist
	$(BIN)/python -m build --no-isolation
	$(PYTHON) -m venv --clear $(VENV)-package
	$(VENV)-package/bin/python -m pip install -q -c constraints.txt dist/*.whl
	$(VENV)-package/bin/python tests/installed.py README.md
	$(VENV)-package/bin/python -m pip install -q -c constraints.txt "$$(echo dist/*.whl)[train,report]"
	$(VENV)-package/bin/python tests/installed.py README.md --extras
	$(VENV)-package/bin/python -m pip install -q --force-reinstall --no-deps dist/*.tar.gz
	$(VENV)-package/bin/python tests/installed.py README.md

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The documentation site, in site/. The tutorials are executed; a broken link or a missing reference fails.
docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

soundness: $(VENV)/.dev
	$(BIN)/pytest -m soundness --timeout 3600

faults: $(VENV)/.dev
	$(BIN)/python benchmarks/faults.py

network: $(VENV)/.dev
	$(BIN)/python benchmarks/network.py

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
	$(BIN)/python benchmarks/eager.py

bench-serving: $(VENV)/.bench
	$(BIN)/python benchmarks/serving.py

serving-faults: $(VENV)/.dev
	$(BIN)/python benchmarks/serving_faults.py

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.core: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) install -q -c constraints.txt -e ".[train,report,serve]"
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) install -q -c constraints.txt -e ".[dev]"
	@touch $@ $(VENV)/.core

$(VENV)/.bench: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) install -q -c constraints.txt -e ".[bench]"
	@touch $@ $(VENV)/.core

$(VENV)/.docs: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) install -q -c constraints.txt -e ".[docs]"
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
	rm -rf $(VENV) site .mypy_cache .ruff_cache .pytest_cache .hypothesis
