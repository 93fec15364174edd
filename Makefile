# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SIMULATION := .venv-flower
PFL := .venv-pfl
BROWSER := .browser
WATCHERS := .venv-watchers
S3 := .venv-s3
# These fork most, and import no torch: a fork of a process that has it takes five times as long. So they run first, alone.
FORKING := tests/core tests/methods tests/report tests/run
# These start a Ray cluster, whose processes need both cores; a process that is connected to one must not fork.
CLUSTER := tests/cluster
OTHERS := $(FORKING:%=--ignore=%) $(CLUSTER:%=--ignore=%)
# Two processes, a file of tests in one of them; the files in their order, the longest first (tests/conftest.py).
BY_FILE := -n 2 --dist loadfile --no-loadscope-reorder
# The tests start many processes, which need not compile the code again.
unexport PYTHONDONTWRITEBYTECODE
# Inputs of each kind that make fuzz tries.
FUZZ ?= 2000
# The commit whose bits are to stay.
BASE := 6e8a5d8

.PHONY: help setup demo test quick fuzz faults check bits wheel flower-simulation pfl watchers s3 clean
help:
	@echo "make demo   set up, then tune a federated model on embedded real data"
	@echo "make test   set up, then run all tests"
	@echo "make quick  the tests without the slow ones"
	@echo "make fuzz   files and messages by chance, FUZZ=$(FUZZ) of each kind: some minutes"
	@echo "make faults  a cluster whose workers, nodes and driver are killed, whose store is full ...: some minutes"
	@echo "make check  ruff and mypy --strict"
	@echo "make bits   small studies of all kinds on this tree and on commit $(BASE): are the bits the same?"
	@echo "make wheel  build the wheel, install it in a fresh environment and run a study from it"
	@echo "make flower-simulation  the examples in Flower's simulation engine, in an environment of its own"
	@echo "make pfl    pfl-research's own loop, tuned by ask and tell, in an environment of its own"
	@echo "make watchers  TensorBoard, MLflow, W&B, Optuna's dashboard, pandas and Jupyter, in an environment of its own"
	@echo "make s3     studies in an object store: moto's S3 on this machine, in an environment of its own"
	@echo "make setup  only make $(VENV), with $(BIN)/fedtuner in it"
	@echo "make clean  remove $(VENV), $(SIMULATION), $(PFL), $(WATCHERS), $(S3), $(BROWSER) and caches (not runs/)"

setup: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml constraints.txt
	@echo "Setting up $(VENV): about a minute the first time ..."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

demo: setup
	@$(BIN)/fedtuner run digits --budget 500 --baseline

# All parts are run, whatever the first ones find.
test: setup $(SIMULATION)/.ready $(PFL)/.ready $(WATCHERS)/.ready $(S3)/.ready $(BROWSER)/.ready
	@$(BIN)/python -m pytest $(BY_FILE) $(FORKING); first=$$?; \
	$(BIN)/python -m pytest $(CLUSTER); second=$$?; \
	$(BIN)/python -m pytest $(BY_FILE) $(OTHERS) && test "$$first $$second" = "0 0"

# None of the cluster's tests is quick. A process that has run out of tests takes some of the other's.
quick: setup
	@$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow" $(FORKING); first=$$?; \
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow" $(OTHERS) && test $$first = 0

# make test tries a few of them.
fuzz: setup
	@FUZZ=$(FUZZ) $(BIN)/python -m pytest $(BY_FILE) tests/inputs/test_fuzzed_files.py tests/flower/test_attacks.py -k "test_any or fuzzed"

# make test has the most common of them.
faults: setup
	@FAULTS=1 $(BIN)/python -m pytest --durations=0 --durations-min=1 $(CLUSTER)

check: setup
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

# The same script on both: it uses the public interface only.
bits: setup
	@git cat-file -e '$(BASE)^{commit}' 2>/dev/null || \
		{ echo "make bits: commit $(BASE) is not in this repository (a shallow clone?)"; exit 2; }
	@echo "Studies on commit $(BASE), then on this tree: about a minute each on two cores ..."
	@folder=$$(mktemp -d) && status=0 && trap 'exit 130' INT TERM HUP && \
	trap 'git worktree remove --force "$$folder/base"; rm -rf "$$folder"' EXIT && \
	git worktree add --quiet --detach "$$folder/base" '$(BASE)' && \
	{ PYTHONPATH="$$folder/base/src" $(BIN)/python scripts/bits.py --out "$$folder/before" || status=1; \
	PYTHONPATH="$(CURDIR)/src" $(BIN)/python scripts/bits.py --out "$$folder/after" || status=1; \
	$(BIN)/python scripts/bits.py --compare "$$folder/before" "$$folder/after" || status=1; \
	exit $$status; }

# Flower's simulation engine pins a Ray of its own, so it has an environment of its own.
$(SIMULATION)/.ready: pyproject.toml constraints.txt constraints-flower.txt
	@echo "Setting up $(SIMULATION): about a minute the first time ..."
	@test -x $(SIMULATION)/bin/python || $(PYTHON) -m venv $(SIMULATION)
	@grep -v '^ray==' constraints.txt > $(SIMULATION)/constraints.txt
	@$(SIMULATION)/bin/python -m pip install --quiet --disable-pip-version-check \
		--constraint $(SIMULATION)/constraints.txt --constraint constraints-flower.txt \
		--editable '.[digits,flower]' 'flwr[simulation]'
	@touch $@

flower-simulation: setup $(SIMULATION)/.ready
	@$(BIN)/python -m pytest tests/flower/test_simulation_engine.py

# pfl-research pins versions of its own. The environment adds them to those of $(VENV), whose torch it uses: 40 MB, ten
# seconds.
$(PFL)/.ready: $(VENV)/.ready constraints-pfl.txt
	@echo "Setting up $(PFL) ..."
	@test -x $(PFL)/bin/python || $(BIN)/python -m venv $(PFL)
	@$(BIN)/python -c "import sysconfig; print(f'import site; site.addsitedir({sysconfig.get_path(\"purelib\")!r})')" \
		> "$$($(PFL)/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/shared.pth"
	@grep -v '^attrs==' constraints.txt > $(PFL)/constraints.txt
	@$(PFL)/bin/python -m pip install --quiet --disable-pip-version-check \
		--constraint $(PFL)/constraints.txt --constraint constraints-pfl.txt pfl
	@touch $@

# The page is tested in a browser: one that is installed, else Debian's chromium in a folder of its own (100 MB, twenty
# seconds). Where there is none, these tests are skipped and say why.
$(BROWSER)/.ready: scripts/browser.sh
	@echo "Setting up $(BROWSER) ..."
	@scripts/browser.sh $(BROWSER)
	@touch $@

pfl: $(PFL)/.ready
	@$(PFL)/bin/python examples/ask_tell_pfl/tune.py

# The libraries of watchers, on top of those of $(VENV): 340 MB, half a minute.
$(WATCHERS)/.ready: $(VENV)/.ready constraints-watchers.txt
	@echo "Setting up $(WATCHERS) ..."
	@test -x $(WATCHERS)/bin/python || $(BIN)/python -m venv $(WATCHERS)
	@$(BIN)/python -c "import sysconfig; print(f'import site; site.addsitedir({sysconfig.get_path(\"purelib\")!r})')" \
		> "$$($(WATCHERS)/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/shared.pth"
	@$(WATCHERS)/bin/python -m pip install --quiet --disable-pip-version-check \
		--constraint constraints.txt --constraint constraints-watchers.txt \
		tensorboardX mlflow-skinny wandb optuna-dashboard pandas ipykernel nbclient
	@touch $@

watchers: $(WATCHERS)/.ready
	@$(BIN)/python -m pytest tests/watchers

# moto's S3 server for the tests. It needs a python-dateutil that the other pins do not allow: 140 MB, twenty seconds.
$(S3)/.ready: constraints-s3.txt
	@echo "Setting up $(S3) ..."
	@test -x $(S3)/bin/python || $(PYTHON) -m venv $(S3)
	@$(S3)/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints-s3.txt \
		'moto[s3]' flask flask-cors
	@touch $@

s3: setup $(S3)/.ready
	@$(BIN)/python -m pytest tests/run/store/test_s3.py

wheel: setup
	@rm -rf dist
	@$(BIN)/python -m build --wheel --outdir dist . > /dev/null
	@PYTHON=$(PYTHON) scripts/check_wheel.sh

clean:
	rm -rf $(VENV) $(SIMULATION) $(PFL) $(WATCHERS) $(S3) $(BROWSER) .mypy_cache .pytest_cache .ruff_cache .hypothesis
