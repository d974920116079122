# One virtual environment, made anew whenever pyproject.toml changes.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
STAMP = $(VENV)/.installed
WORKERS ?= 2
SPREAD = -n $(WORKERS) --dist loadfile
# The default tests mostly wait for the compiler, so it optimises less; test-all and test-ends let it.
QUICKLY = JAX_PLATFORMS=cpu JAX_DISABLE_MOST_OPTIMIZATIONS=1

.PHONY: stream reproduce test test-all test-ends coverage bench mutation docs lint format clean
OUT ?= runs/pocket

$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[test,lint]'
	touch $(STAMP)

stream: $(STAMP)  ## the embedded stream: four methods, five seeds; OUT=folder, ARGS='--resume'
	$(BIN)/hmcl run --config pocket --out $(OUT) --report $(ARGS)

reproduce: $(STAMP)  ## every table of the paper on the embedded streams; continues what was interrupted
	$(BIN)/python experiments/reproduce.py --all --stream pocket --out runs/reproduced $(ARGS)

test: $(STAMP)  ## the default suite
	$(QUICKLY) $(BIN)/python -m pytest $(SPREAD) -m 'not slow'

test-all: $(STAMP)  ## the default suite and the slow tests
	JAX_PLATFORMS=cpu $(BIN)/python -m pytest $(SPREAD)

test-ends:  ## a part of it with the oldest and with the newest packages, where there is a Python
	WORKERS=$(WORKERS) .ci/test_end oldest
	WORKERS=$(WORKERS) .ci/test_end newest

coverage: $(STAMP)  ## lines of the package that the default suite runs; fails below 95 %
	$(BIN)/python -m pip install --quiet 'coverage>=7.10' 'pytest-cov>=7'
	$(QUICKLY) $(BIN)/python -m pytest $(SPREAD) -m 'not slow' --cov

BENCHMARKS ?= fit_task objective projection decomposition seeds scaling startup imagenet_task towers long_stream
bench: $(STAMP)  ## the short form of every benchmark; see benchmarks/README.md
	set -e; for name in $(BENCHMARKS); do \
	  echo "== $$name"; $(BIN)/python benchmarks/$$name.py --short; done

mutation: $(STAMP)  ## breaks the method's modules in small ways, one at a time; ARGS='--sample 10'
	$(BIN)/python -m pip install --quiet cosmic-ray; mkdir -p build
	$(BIN)/python tools/mutants.py --out build/mutants.json $(ARGS)

docs: $(STAMP)  ## the reference, from docstrings, into docs/api
	$(BIN)/python -m pip install --quiet --editable '.[docs]'
	$(BIN)/python docs/build_api.py docs/api

lint: $(STAMP)  ## style, types and layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
