# make setup | test | test-ci | nightly | lint | check | chaos | fuzz | hostile | wheel | nsys
PYTHON ?= python3
# Installed only where no torch can be imported.
TORCH ?= torch==2.13.0
# Three for two cores: many tests wait for the processes that they start.
WORKERS ?= $(shell n=$$(( ($$(nproc) * 3 + 1) / 2 )); echo $$(( n > 8 ? 8 : n )))
# A worker that has run out of tests takes some of another one: few modules share what costs much to make.
PYTEST_FLAGS ?= -q -n $(WORKERS) --dist worksteal --durations=10

# Hundreds of tests start a Python that imports profpipe. Where this variable is set, each of them compiles it again.
export PYTHONDONTWRITEBYTECODE :=

VENV := .venv
BIN := $(VENV)/bin
SCRIPTS := auto_profile.sh .ci/run .ci/nsys .ci/chromium .ci/perfetto .ci/slurm

.PHONY: check setup test test-ci nightly lint chaos fuzz hostile wheel nsys clean
.DEFAULT_GOAL := check

# One after the other, also under make -j: the tests' summary is the last line.
check:
	@$(MAKE) --no-print-directory lint
	@$(MAKE) --no-print-directory test-ci

setup: $(VENV)/.tested

$(VENV)/.tested: pyproject.toml constraints.txt auto_profile.sh
	PYTHON='$(PYTHON)' TORCH='$(TORCH)' PIP_CONSTRAINT='$(CURDIR)/constraints.txt' ./auto_profile.sh --setup
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[test,lint]'
	@touch $@

# For every change: all tests but those marked slow.
test: setup
	$(BIN)/python -m pytest $(PYTEST_FLAGS) -m 'not slow'

# For CI: all tests but those marked exhaustive, which take longer and whose point another test samples.
test-ci: setup
	$(BIN)/python -m pytest $(PYTEST_FLAGS) -m 'not exhaustive'

# What CI leaves out: the tests marked exhaustive, those with a stub of torch with the real one, and the long suites.
nightly: setup
	PROFPIPE_REAL_TORCH=1 $(BIN)/python -m pytest $(PYTEST_FLAGS) -m exhaustive
	@$(MAKE) --no-print-directory fuzz FUZZ_S=$(or $(FUZZ_S),600)
	@$(MAKE) --no-print-directory chaos

# Damaged files of every kind for an hour; FUZZ_S and FUZZ_SEED choose another time and other damages.
fuzz: setup
	PROFPIPE_FUZZ_S=$(or $(FUZZ_S),3600) PROFPIPE_FUZZ_SEED=$(or $(FUZZ_SEED),1) \
	    $(BIN)/python -m pytest -q -s -o faulthandler_timeout=0 tests/test_fuzz.py

# The hostile corpus, half an hour on two cores.
hostile: setup
	$(BIN)/python benchmarks/hostile.py

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/shellcheck $(SCRIPTS)

# A hundred seeded faults, half an hour on two cores.
chaos: setup
	$(BIN)/python benchmarks/chaos.py

wheel: setup
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist .
	@ls dist/*.whl

# A real nsys without root and without a GPU, for the tests (Debian only).
nsys:
	.ci/nsys

clean:
	rm -rf build dist *.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis
