# The first two commands: `make quickstart` and `make test`. Both create .venv if needed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP_FLAGS := --quiet --disable-pip-version-check -c constraints.txt

.PHONY: help quickstart test test-all test-sittings test-gpu check format docs house bench dashboards dist clean

help:
	@echo "make quickstart  train on the docstrings of Python, measure, print a table"
	@echo "make test        the fast tests;  make test-all  the slow ones too"
	@echo "make test-gpu    the tests of a CUDA device, with the packages that \$$(PYTHON) has"
	@echo "make check       format, lint, types, import contracts;  make format  correct format and lint"
	@echo "make docs        build the site of docs/ in build/site; a broken link is an error"
	@echo "make house       sizes of each room and what is expected; what breaks the rules of the layout"
	@echo "make bench       run all benchmarks; on a machine with a GPU also python benchmarks/gpu.py"
	@echo "make dashboards  Prometheus and Grafana for the Ray on this machine; see docs/how-to/watch-a-run.md"

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip

# One stamp for each set of dependencies: to run, to test and check, to build the site.
$(VENV)/.runs: $(VENV)/bin/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install $(PIP_FLAGS) -e .
	@touch $@

$(VENV)/.tests: $(VENV)/.runs
	$(BIN)/python -m pip install $(PIP_FLAGS) -e '.[dev]'
	@touch $@

$(VENV)/.docs: $(VENV)/.runs
	$(BIN)/python -m pip install $(PIP_FLAGS) -e '.[docs]'
	@touch $@

quickstart: $(VENV)/.runs
	$(BIN)/raytriever quickstart

# Test processes share the cores; threads that wait by spinning would slow each other down.
test test-all: export OMP_WAIT_POLICY = PASSIVE

# Three files at a time, a thread each: many tests wait for processes to start, or are too small for two threads. Files
# in their own order, so that the long ones of Ray and of process groups are not last. Bytecode is written whatever the
# environment says: the tests start hundreds of processes.
# Ray's workers have the lowest priority by default, and would wait for all other tests.
test: export OMP_NUM_THREADS = 1
test: export RAY_worker_niceness = 0
test: $(VENV)/.tests
	env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest -m "not slow and not gpu" --numprocesses 3 --dist loadfile --no-loadscope-reorder

test-all: $(VENV)/.tests
	env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest -m "not gpu"
	@if $(OTHER_PYTHON) -c '' 2> /dev/null; then $(MAKE) test-sittings; else echo "no $(OTHER_PYTHON): make test-sittings was not run"; fi

# With the Python and the torch of the machine whose GPU was measured: its sittings and the files of its tests, on a CPU.
OTHER_PYTHON ?= python3.12
$(VENV)/sittings/.tests: pyproject.toml constraints.txt
	$(OTHER_PYTHON) -m venv $(@D)
	grep -vE '^(torch|triton|nvidia|cuda)' constraints.txt > $(@D)/constraints.txt
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check -c $(@D)/constraints.txt torch==2.11.0 -e '.[dev]'
	@touch $@
test-sittings: $(VENV)/sittings/.tests
	OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE $(<D)/bin/python -m pytest -m "not gpu" -o filterwarnings=default \
		--numprocesses 3 --dist loadfile tests/unit/test_benchmarks.py $(GPU_TESTS)

# On a plain machine with a GPU: torch, transformers, triton, numba, jaxtyping, scipy, pyarrow and pytest; nothing is installed.
# Warnings of versions that are not pinned are no errors. With pytest-xdist, six files at a time.
GPU_TESTS = $(shell grep -rlE 'mark\.gpu|cuda: torch\.device' tests --include='test_*.py')
test-gpu:
	@$(PYTHON) -c 'import importlib.util, sys; importlib.util.find_spec("torch") or sys.exit("$(PYTHON) has no torch: name a Python that has it, as in make PYTHON=python3.12 test-gpu")'
	@$(PYTHON) -c 'import sys, torch; sys.exit(None if torch.cuda.is_available() else "torch " + torch.__version__ + " finds no CUDA device: install a build of torch for CUDA and a driver that it supports")'
	PYTHONPATH=platform PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 $(PYTHON) -m pytest -m gpu -o addopts=--import-mode=importlib \
		-o filterwarnings=default -W ignore::pytest.PytestConfigWarning \
		$$($(PYTHON) -c 'import importlib.util as i; print("-p xdist.plugin -n 6 --dist loadfile" * bool(i.find_spec("xdist")))') $(GPU_TESTS)

check: $(VENV)/.tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.tests
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(VENV)/.docs
	$(BIN)/python docs/build.py

house: $(VENV)/.tests
	$(BIN)/python benchmarks/house.py

bench: $(VENV)/.tests
	$(BIN)/python benchmarks/ground_truth.py
	$(BIN)/python benchmarks/zoo.py
	$(BIN)/python benchmarks/losses.py
	$(BIN)/python benchmarks/metrics.py
	$(BIN)/python benchmarks/interval_coverage.py
	$(BIN)/python benchmarks/data.py
	$(BIN)/python benchmarks/grad_cache.py
	$(BIN)/python benchmarks/train.py
	$(BIN)/python benchmarks/train_profile.py
	$(BIN)/python benchmarks/nested.py
	$(BIN)/python benchmarks/refresh.py
	$(BIN)/python benchmarks/evaluating.py
	$(BIN)/python benchmarks/retrieval_encode.py
	$(BIN)/python benchmarks/retrieval_search.py
	$(BIN)/python benchmarks/retrieval_mine.py
	$(BIN)/python benchmarks/annotate.py
	$(BIN)/python benchmarks/indexes.py
	$(BIN)/python benchmarks/workers.py
	$(BIN)/python benchmarks/tune.py
	$(BIN)/python benchmarks/faults.py
	$(BIN)/python benchmarks/kills.py
	$(BIN)/python benchmarks/buckets.py
	$(BIN)/python benchmarks/startup.py
	$(BIN)/python benchmarks/tracking.py
	$(BIN)/python benchmarks/quickstart.py

dashboards: $(VENV)/.runs
	$(BIN)/python dashboards/panels.py
	$(BIN)/python dashboards/watch.py

# What every node of a cluster installs: the wheel, and the versions it was tested with (docs/how-to/start-a-cluster.md).
dist: $(VENV)/bin/python
	rm -rf dist
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps -w dist .
	cp constraints.txt dist/

clean:
	rm -rf $(VENV) build .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
