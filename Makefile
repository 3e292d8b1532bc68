# Every target makes what it needs on a fresh machine: `make demo` and `make test` are all the set-up there is.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check
STAMP  := $(VENV)/.installed
TOOLS  := $(VENV)/.tools

.PHONY: demo test test-all lint format bench docs pictures clean

# pip and not uv: torch is pinned here so that the small CPU build is taken; the package itself declares a range.
$(STAMP): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) torch==2.13.0
	$(PIP) -e .
	touch $(STAMP)

$(TOOLS): $(STAMP)
	$(PIP) -e '.[dev]'
	touch $(TOOLS)

demo: $(STAMP)
	$(BIN)/nantrap demo pixeldlm --fault short_text

lint: $(TOOLS)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(TOOLS)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

test: lint
	$(BIN)/pytest -q -n 2 --dist loadfile

test-all: lint
	$(BIN)/pytest -q -n 2 --dist loadfile -m 'slow or not slow'

bench: $(STAMP)
	$(BIN)/python benchmarks/overhead.py

docs: $(STAMP)
	$(BIN)/python docs/build.py

pictures: $(STAMP)
	$(BIN)/python docs/pictures.py

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
