# Everything a contributor runs. A bare machine needs Python 3.11 and make; the network only for the first `make setup`.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
WHEELS := .cache/wheels
PIP    := $(BIN)/python -m pip --disable-pip-version-check
PYTEST := $(BIN)/python -m pytest
SERVERS := $(BIN)/python -m tests.services
LOCKED := $(shell cksum < requirements.lock | cut -d ' ' -f 1)

# Without compiled files each process that a test starts would compile the whole package anew, and each worker the tests.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup demo test compiled installed test-protocol test-with-servers test-quick services services-stop check format \
  mutants soak bench lock wheel clean

help: ## Show what can be made
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(VENV)/.project ## Make .venv from requirements.lock; a second run does nothing and needs no network

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)

# Every locked package lands here first: installs, and the clean environments of the acceptance tests, are made from it.
# The stamps carry the checksum of the lock, since a checkout changes the time of a file that did not change.
$(WHEELS)/.complete-$(LOCKED): | $(BIN)/python
	rm -rf $(WHEELS).new && mkdir -p $(WHEELS)
	$(PIP) download --quiet --only-binary :all: --require-hashes --requirement requirements.lock \
	  --find-links $(WHEELS) --dest $(WHEELS).new
	rm -rf $(WHEELS) && mv $(WHEELS).new $(WHEELS)
	@touch $@

$(VENV)/.packages-$(LOCKED): | $(WHEELS)/.complete-$(LOCKED) $(BIN)/python
	$(PIP) install --quiet --no-index --find-links $(WHEELS) uv
	$(BIN)/uv pip install --quiet --no-config --no-cache --offline --compile-bytecode --python $(BIN)/python \
	  --no-index --find-links $(WHEELS) --require-hashes --requirement requirements.lock
	@touch $@

$(VENV)/.project: $(VENV)/.packages-$(LOCKED) pyproject.toml
	$(PIP) install --quiet --no-index --no-deps --no-build-isolation --editable .
	@touch $@

demo: setup ## See jobs handed over on time
	$(BIN)/infinite-scheduler demo

# The tests of the protocol need nothing but a processor. They have the time that the others leave, which often wait.
PROTOCOL := tests/model tests/simulation
BESIDE := --no-print-directory --jobs 3 --output-sync=target

test: wheel compiled ## Run the whole suite with real servers
	@$(SERVERS) run -- $(MAKE) $(BESIDE) installed test-protocol test-with-servers

# Once here: otherwise each of the ten workers below would compile all tests.
compiled: setup
	$(PYTEST) -q -n 0 --collect-only tests > /dev/null

# What acceptance tests run, made while others are tested.
installed:
	nice -n 10 $(BIN)/python -m tests.acceptance.installation

# What they get in a minute depends on the others, so that the usual limit per test would measure those.
test-protocol:
	nice -n 10 $(PYTEST) -n 2 --dist worksteal --timeout 900 $(PROTOCOL)

# Acceptance tests come last, as they mind how busy the machine is. The output of lines with a plus is not held back.
test-with-servers:
	+$(PYTEST) -n 4 --dist worksteal tests --ignore=tests/acceptance $(addprefix --ignore=,$(PROTOCOL))
	+$(PYTEST) -n 4 --dist worksteal tests/acceptance

test-quick: setup ## Run the unit and contract tests that need no servers
	$(PYTEST) -n 2 -m "not servers" tests/unit tests/contract
	@echo "Left out: the folders of tests/ other than unit and contract. \`make test\` runs everything."

services: setup ## Start MariaDB, PostgreSQL and Kafka for tests, until services-stop; installs them where they are missing
	$(SERVERS) start

services-stop: setup ## Stop them
	$(SERVERS) stop

check: setup ## Check format, lint, types and layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup ## Format the code and fix what can be fixed
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

mutants: setup ## Take each guard of a list out of the code, and see that a test misses it (half an hour)
	$(SERVERS) run -- $(BIN)/python -m tests.mutants

soak: export TMPDIR ?= /tmp
soak: wheel ## Run the endurance tests at full length, with files on a disk
	INFINITE_SCHEDULER_SOAK=1 $(SERVERS) run -- $(PYTEST) --timeout 0 tests/acceptance
	INFINITE_SCHEDULER_SOAK=1 $(SERVERS) run -- $(PYTEST) --timeout 0 -n 2 $(PROTOCOL)
	INFINITE_SCHEDULER_SOAK=1 $(SERVERS) run -- $(PYTEST) --timeout 0 -n 2 -m endurance tests --ignore=tests/acceptance
	INFINITE_SCHEDULER_SOAK=1 $(PYTEST) --timeout 0 -n 2 -m "hypothesis and not servers" tests

STORES := sqlite mariadb postgres
FIGURES := .cache/figures.jsonl

bench: SHELL := /bin/bash
bench: .SHELLFLAGS := -o pipefail -c
bench: setup ## Measure every store, print one JSON line per question, and write the table in README.md
	$(SERVERS) run --durable -- $(MAKE) $(addprefix bench-,$(STORES)) | tee $(FIGURES)
	$(BIN)/python -m bench.table $(FIGURES)

bench-%:
	$(BIN)/python -m bench.accept --store $*
	$(BIN)/python -m bench.accept --store $* --keys
	$(BIN)/python -m bench.hand_over --store $*
	$(BIN)/python -m bench.hand_over --store $* --jobs 100000 --herd --runs 3
	$(BIN)/python -m bench.lateness --store $*
	$(BIN)/python -m bench.lateness --store $* --waiting 1000000 --runs 3
	$(BIN)/python -m bench.nodes --store $*
	$(BIN)/python -m bench.apps --store $* --runs 1
	$(BIN)/python -m bench.stream --store $* --runs 3
	$(BIN)/python -m bench.stream --store $* --urgent

lock: setup ## Compile requirements.lock anew (needs the network)
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --upgrade --no-header \
	  --all-extras --group dev --output-file requirements.lock pyproject.toml

wheel: setup ## Build dist/*.whl, without the network
	rm -rf dist
	$(BIN)/python -m build --no-isolation --wheel --outdir dist . > /dev/null
	@ls dist

clean: ## Remove what was made, the virtual environment and the package cache included
	-[ ! -x $(BIN)/python ] || $(SERVERS) remove
	rm -rf $(VENV) .cache .services dist build .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find src tests bench examples -type d -name __pycache__ -prune -exec rm -rf {} +
