# Everything runs in .venv, made with plain venv and pip; `make demo` and `make test` set it up on first use.

PYTHON ?= python3
BIN := .venv/bin
PIP = $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable

.PHONY: demo test slow bench check setup clean

demo: setup
	run=runs/demo-$$(date +%Y%m%d-%H%M%S) && \
	$(BIN)/unilab train CartpoleSwingup --out $$run && $(BIN)/unilab eval $$run && $(BIN)/unilab video $$run

test: setup
	$(BIN)/python -m pytest

slow: setup
	$(BIN)/python -m pytest -m slow

bench: setup
	benchmarks/all.sh $(BIN)/python

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

setup: .venv/.installed

.venv/.installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) '.[dev]'
	$(PIP) '.[mjbatch,mujoco-uni]' || echo "no wheels of mjbatch or mujoco-uni-runtime for this system: their tests are skipped"
	touch $@

clean:
	rm -rf .venv build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
