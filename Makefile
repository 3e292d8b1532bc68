# Every target makes what it needs on a fresh machine: `make demo` and `make test` are all the set-up there is.
# Another Python: `make test PYTHON=python3.12 VENV=.venv-3.12`.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check
STAMP  := $(VENV)/.installed
TOOLS  := $(VENV)/.tools
# Everything whose tests run the real package.
EXTRAS := torch,accelerate,lightning,transformers,remote,data,plot,watch,serve,completion
PYTEST := $(BIN)/python -m pytest -q -n 2 --dist loadfile --durations 10

# What `make bench` runs the tools on.
ZOO    := data forward_maths backward_maths precision optimisation state platform controls scripts held_back

.PHONY: demo test test-all test-portable test-shuffled matrix coverage lint format bench baseline baseline-compare docs outputs pictures tables fuzz clean

# pip and not uv: torch is pinned here so that the small CPU build is taken; the package itself declares a range.
$(STAMP): pyproject.toml systems/pyproject.toml
	test -x $(BIN)/python || "$(PYTHON)" -m venv $(VENV)
	$(PIP) 'pip>=25.1' torch==2.13.0
	$(PIP) -e . -e systems
	touch $(STAMP)

$(TOOLS): $(STAMP)
	$(PIP) -e '.[$(EXTRAS)]' -e systems --group dev
	touch $(TOOLS)

demo: $(STAMP)
	$(BIN)/nantrap demo radiodiff --fault log_zero_time

lint: $(TOOLS)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy --config-file tests/mypy.ini
	$(BIN)/lint-imports

format: $(TOOLS)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

test: lint
	$(PYTEST)

test-all: lint
	$(PYTEST) -m 'slow or not slow'

# The same tests and demos as on other CPUs, emulated; takes more than an hour on two cores.
test-portable: $(TOOLS)
	$(BIN)/python tests/portable.py
	$(BIN)/python systems/tests/portable_demos.py

# The order of the tests must not matter. Prints its seed; `make test-shuffled SEED=7` repeats one order.
SEED ?=
test-shuffled: $(TOOLS)
	$(PYTEST) --random-order-bucket=global $(if $(SEED),--random-order-seed=$(SEED),--random-order)

# Python versions and torch versions that this machine has or can get; see noxfile.py.
matrix: $(TOOLS)
	$(BIN)/python -m nox

coverage: $(TOOLS)
	$(BIN)/python -m coverage run --parallel-mode --source nantrap,nantrap_systems -m pytest -q
	$(BIN)/python -m coverage combine --quiet
	$(BIN)/python -m coverage report --sort cover --skip-covered

# Every reader gets damaged files for SECONDS seconds; inputs that reach new code are kept in build/fuzz.
SECONDS ?= 600
fuzz: $(TOOLS)
	$(PIP) --group fuzz
	$(BIN)/python tests/fuzzing.py build/fuzz -max_total_time=$(SECONDS)

# Every tool of the zoo on every program, what a healthy step costs with it, and how the guard's cost grows; then the tables. Takes hours.
bench: $(TOOLS)
	for tool in $$($(BIN)/python -m zoo --list | cut -d' ' -f1); do \
	  $(BIN)/python -m zoo --save --tool $$tool $(ZOO); $(BIN)/python -m zoo --save --cost --tool $$tool; done
	$(BIN)/python benchmarks/overhead.py --pairs 60 --save
	$(BIN)/python benchmarks/overhead.py --only mlp --block 200 --pairs 20 --save
	$(BIN)/python benchmarks/overhead.py --tensors --pairs 7 --save
	$(BIN)/python benchmarks/launch.py --pairs 40 --starts 10 --save
	$(BIN)/python benchmarks/launch.py --only mlp --block 200 --pairs 20 --save
	$(BIN)/python benchmarks/path.py --save
	$(BIN)/python benchmarks/path.py --bad --save
	$(BIN)/python benchmarks/growth.py
	$(BIN)/python -m zoo.tables

# What nantrap says about every program of the zoo and about fixed inputs: `make baseline` on the code before a change,
# `make baseline-compare` after it. Takes about half an hour on two cores.
baseline: $(STAMP)
	$(BIN)/python benchmarks/baseline.py

baseline-compare: $(STAMP)
	$(BIN)/python benchmarks/baseline.py --compare

# A site that needs no network to be read: build/site/index.html. A broken link fails it.
docs: $(TOOLS)
	$(BIN)/python docs/build.py
	$(BIN)/python docs/api.py
	$(BIN)/python docs/site.py
	$(BIN)/zensical build --strict --config-file zensical.toml
	$(BIN)/python docs/site.py --search

# Runs the example of every cause and of four commands, and writes what it prints into its page; takes a few minutes.
outputs: $(STAMP)
	$(BIN)/python docs/build.py --run
	$(BIN)/python docs/command_outputs.py

pictures: $(STAMP)
	$(BIN)/python systems/docs/pages.py

tables: $(STAMP)
	$(BIN)/python systems/docs/pages.py --tables
	$(BIN)/python -m zoo.tables

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
