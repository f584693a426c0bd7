PYTHON ?= python3
BIN := .venv/bin
# two processes of one thread each: tests are many and small
TESTS := OMP_NUM_THREADS=1 $(BIN)/pytest --numprocesses 2 --dist loadfile

# `make test-mutants COUNT=200 SEED=7`: how many small faults are tried, and which
COUNT ?= 80
SEED ?= 1

.PHONY: demo test test-slow test-hostile test-mutants lint format

demo: .venv/.run
	$(BIN)/vitadel demo

test: .venv/.dev lint
	$(TESTS) -m "not slow"

test-slow: .venv/.dev
	$(TESTS)

# random interruptions, nonsense, failing writes and damaged files, for VITADEL_HOSTILE_MINUTES (30)
test-hostile: .venv/.dev
	OMP_NUM_THREADS=1 $(BIN)/pytest tests/hostile

test-mutants: .venv/.dev
	$(BIN)/python tests/mutants/sample.py --count $(COUNT) --seed $(SEED) --jobs 2

lint: .venv/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell
	$(BIN)/mypy

format: .venv/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.venv/.run: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -e .
	touch $@

.venv/.dev: .venv/.run
	$(BIN)/pip install --quiet --disable-pip-version-check -e ".[dev]"
	touch $@
