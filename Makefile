# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: help setup demo test quick check clean
help:
	@echo "make demo   set up, then tune a federated model on embedded real data"
	@echo "make test   set up, then run all tests"
	@echo "make quick  the tests without the slow ones"
	@echo "make check  ruff and mypy --strict"
	@echo "make setup  only make $(VENV), with $(BIN)/fedtuner in it"
	@echo "make clean  remove $(VENV) and caches (not runs/)"

setup: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml constraints.txt
	@echo "Setting up $(VENV): about a minute the first time ..."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

demo: setup
	@$(BIN)/fedtuner run digits --baseline

test: setup
	@$(BIN)/python -m pytest

quick: setup
	@$(BIN)/python -m pytest -m "not slow"

check: setup
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis
