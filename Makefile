# Every target installs what it needs; Python 3.11 or newer, make and git are enough.
# Stamp files in .venv record what is installed, so a second run installs nothing.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
UV := $(BIN)/uv
RUNTIME := $(VENV)/.installed-runtime
DEV := $(VENV)/.installed-dev
# The emulator of AWS for the tests, in its own environment: its pins conflict with ours.
STANDIN := $(VENV)/aws-stand-in
LOCK_ARGS ?=
# `--python` names our own environment: another one may be active in the caller's shell.
INSTALL := $(UV) pip install --quiet --python $(BIN)/python
LOCK := $(UV) pip compile --quiet --generate-hashes --no-header --python-version 3.11 --universal \
	$(LOCK_ARGS) pyproject.toml

# Dependencies of the functions on AWS; shipped, because the deployment builds their zip from it.
LOCK_FUNCTIONS := $(UV) pip compile --quiet --generate-hashes --no-header --no-annotate \
	--python-version 3.12 --python-platform linux --extra aws \
	--constraint requirements-dev.txt pyproject.toml

# Each candidate is run: a version manager's shim can exist without a working interpreter.
PYTHON ?= $(shell for candidate in python3.11 python3 python3.12 python3.13 python; do \
	if "$$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; \
	then echo "$$candidate"; break; fi; done)

# Many tests wait for other processes, so three workers use two processors better.
PYTEST_ARGS ?= -n 3 --dist worksteal --durations 25 --durations-min 5

.PHONY: help demo test check fix cover bench bench-peers bench-scale docs mutants planted sim crash freeze backup-proof power lock sbom

help: ## Print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(RUNTIME) ## Watch a job survive a worker crash
	@$(BIN)/longshore demo

# The tests start thousands of processes, which should not compile what they import.
test cover: export PYTHONDONTWRITEBYTECODE :=
test: $(DEV) $(STANDIN)/.installed ## Run the tests (PYTEST_ARGS=... to choose)
	$(BIN)/python -m pytest $(PYTEST_ARGS)

check: $(DEV) ## Lint, formatting, types and licences; changes nothing
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python deploy/packages.py licences

fix: $(DEV) ## Fix what the linter can fix, and format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

cover: $(DEV) ## Branch coverage of core by its own tests; fails below 100%
	$(BIN)/python -m coverage run -m pytest --quiet tests/unit/core
	$(BIN)/python -m coverage report --include='src/longshore/core/*' --fail-under=100

bench: $(DEV) ## Measure throughput and latency
	$(BIN)/python -m benchmarks

bench-peers: $(DEV) ## Compare with other job queues (QUICK=1 in minutes; BENCH_ARGS=... to choose)
	$(BIN)/python -m benchmarks.peers $(if $(QUICK),--quick) $(BENCH_ARGS)

bench-scale: $(DEV) ## Measure how the cost of a task grows (QUICK=1 in minutes)
	$(BIN)/python -m benchmarks.scaling $(if $(QUICK),--quick) $(BENCH_ARGS)

docs: $(DEV) ## Generate docs/reference from the code
	$(BIN)/python docs/generate.py
	$(BIN)/longshore aws deploy --stage dev --render infra/templates

mutants: $(DEV) ## Plant faults in the code and check that the tests find them
	$(BIN)/python -m tests.mutants

planted: $(DEV) ## Plant protocol bugs and check that the simulator finds them
	$(BIN)/python -m tests.simulation.planted_bugs

sim: SEEDS ?= 1000
sim: FROM ?= 0
sim: PROFILE ?= default
sim: $(DEV) ## Run the whole system under simulated faults (SEEDS=2000 FROM=0 PROFILE=aws)
	$(BIN)/python -m verification.simulation --seeds $(SEEDS) --from $(FROM) --profile $(PROFILE)

crash: $(DEV) ## Kill real processes at each failpoint and check that nothing is lost
	$(BIN)/python -m verification.crash

freeze: ROUNDS ?= 50
freeze: $(DEV) ## Stop each process of a worker in turn and check that no attempts overlap
	$(BIN)/python -m verification.freeze --rounds $(ROUNDS)

backup-proof: COUNT ?= 50
backup-proof: $(DEV) ## Back up a busy store, restore each backup and audit it
	$(BIN)/python -m verification.backups --count $(COUNT)

power: $(DEV) ## Cut the power at any write and check that promised data is there
	$(BIN)/python -m verification.power --cuts 5000
	$(BIN)/python -m tests.power.planted_faults

sbom: $(DEV) ## Print what Longshore is made of as CycloneDX JSON
	@$(BIN)/python deploy/packages.py sbom

lock: $(UV) ## Write requirements*.txt from pyproject.toml (LOCK_ARGS=--upgrade for newer versions)
	echo uv | $(LOCK:pyproject.toml=-) -o requirements-uv.txt
	$(LOCK) --group build -o requirements.txt
	$(LOCK) --all-extras --group dev --group build -o requirements-dev.txt
	$(LOCK:pyproject.toml=tests/aws/requirements.in) -o tests/aws/requirements.txt
	for file in benchmarks/peers/requirements/*.in; do \
		$(LOCK:pyproject.toml=$$file) -o $${file%.in}.txt; done
	$(LOCK_FUNCTIONS) -o src/longshore/adapters/aws/deploy/function-requirements.txt

$(UV):
	@if [ -z "$(PYTHON)" ]; then echo "Longshore needs Python 3.11 or newer; none was found (PYTHON=/path/to/python3 names one)." >&2; exit 1; fi
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Longshore needs Python 3.11 or newer; $(PYTHON) is older or does not start." >&2; exit 1; }
	@echo "Setting up $(VENV) with $(PYTHON)"
	@"$(PYTHON)" -m venv $(VENV) || { echo "Python's venv module does not work here; on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-uv.txt

$(RUNTIME): requirements.txt pyproject.toml | $(UV)
	@echo "Installing what is needed to run"
	@$(INSTALL) --require-hashes -r requirements.txt
	@$(INSTALL) --no-deps --no-build-isolation --editable .
	@touch $@

# The development lock holds everything of the runtime lock, so it brings both up to date.
$(DEV): requirements-dev.txt pyproject.toml | $(UV)
	@echo "Installing what is needed to develop"
	@$(INSTALL) --require-hashes -r requirements-dev.txt
	@$(INSTALL) --no-deps --no-build-isolation --editable .
	@touch $(RUNTIME) $@

$(STANDIN)/.installed: tests/aws/requirements.txt | $(UV)
	@echo "Installing the emulator of AWS"
	@$(UV) venv --quiet --clear --python $(BIN)/python $(STANDIN)
	@$(UV) pip install --quiet --python $(STANDIN)/bin/python --require-hashes -r tests/aws/requirements.txt
	@touch $@
