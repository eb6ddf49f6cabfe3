# The front door. `make demo` and `make test` do all the set-up on a fresh machine with Python >= 3.10.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
# The core tier runs on every push; `make test-all` is the full one, run before a release.
JOBS   ?= 2
# Processor time that the core tier may take, in seconds.
CORE_SECONDS ?= 600
# Tests start the command line hundreds of times; without bytecode each start compiles 300 modules again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test test-nightly test-all wheel-test lab lint docs clean

help:
	@echo "make demo      set up, train a small network in a container (or locally), show its receipt"
	@echo "make test      set up, lint, and the core tests (Docker and Podman tests skip where there is no engine)"
	@echo "make test-nightly  the tests that tests/nightly.txt names"
	@echo "make test-all  all of them, and the slow tests"
	@echo "make wheel-test  build the wheel, install it with pip, pipx and uv, and use it from there"
	@echo "make lab       run loops that count their own steps, and compare with what is measured"
	@echo "make docs      build the site in build/site, with the pages that are generated from the code"

# A command that prints nothing for long, with a dot for each second of it.
alive = echo '$(1)'; $(1) & pid=$$!; while kill -0 $$pid 2>/dev/null; do sleep 1; printf .; done; echo; wait $$pid

$(VENV)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 10) or sys.exit("seatrial needs Python 3.10 or newer, for example: make PYTHON=python3.12 demo")'
	@$(call alive,$(PYTHON) -m venv $(VENV))
	@$(call alive,$(BIN)/python -m pip install --progress-bar off --upgrade pip)
	@$(call alive,$(BIN)/python -m pip install --progress-bar off -c constraints.txt -e .)
	@$(call alive,$(BIN)/python -m compileall -q src)
	@touch $@

# The tests train for real: torch beside the host side, which itself never imports it.
$(VENV)/.test: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[train,digits,tensorboard,mlflow]' --group test --group lint
	@touch $@

# Exit code 5 says that no container could be had here (no engine, no base image): then locally, in a venv of its own.
demo: $(VENV)/.installed
	@$(BIN)/seatrial run digits -C demo || { [ $$? -eq 5 ] && $(BIN)/seatrial run digits -C demo --on local; }
	@echo; echo "Next, with a script of yours: source $(VENV)/bin/activate && cd YOUR_PROJECT && seatrial run train.py"

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/codespell

# In groups, in the order of tests/conftest.py. A worker that crashes is not replaced: xdist 3.8.0 would wait for ever.
PYTEST := $(BIN)/pytest -n $(JOBS) --dist loadgroup --no-loadscope-reorder --max-worker-restart 0

test: lint
	$(PYTEST) -m "not slow and not nightly" --core-seconds $(CORE_SECONDS) tests

# UNTIL is a Unix time: tests that would start later are skipped, and counted.
test-nightly: $(VENV)/.test
	$(PYTEST) -m "nightly and not slow" $(if $(UNTIL),--until $(UNTIL)) tests

test-all: lint
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[spam]'
	$(PYTEST) tests

# The wheel, not the tree. After `make demo` the demo's image is there, and all takes about a minute.
$(VENV)/.wheel: $(VENV)/.test
	$(BIN)/python -m pip install --quiet -c constraints.txt --group wheel
	@touch $@

wheel-test: $(VENV)/.wheel
	$(BIN)/pytest -n 0 tests/unit/test_distribution.py tests/integration/test_wheel.py

# Loops that count themselves beside what the hook measures; ASIDE=1 adds the tenth that is kept aside.
lab: $(VENV)/.test
	$(BIN)/python tests/lab/lab.py $(if $(ASIDE),--aside) --out benchmarks/results/lab.json

$(VENV)/.docs: $(VENV)/.test
	$(BIN)/python -m pip install --quiet -c constraints.txt --group docs
	@touch $@

# Stops at a link that leads nowhere. The site, in build/site, can be opened from there; it asks no other server for anything.
docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo "the site: build/site/index.html"

clean:
	rm -rf $(VENV) build dist
