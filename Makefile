# The commands of the project. `make help` lists them; .ci/run calls them too.
#
# Everything is installed into one environment, .venv, by uv. The stamps under .make/ record finished
# steps, so that a second `make` without changes does no work.

.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS += --no-builtin-rules --no-print-directory

# Candidates for the environment's Python; the first that is new enough is used.
PYTHONS ?= python3 python3.11 python3.12 python3.13 python3.14
# uv from the path, else from .venv.
UV := $(or $(shell command -v uv),.venv/bin/uv)
# Arguments for the programs: make demo ARGS="--seed 3", make test ARGS="-k channel -x".
ARGS ?=

# The only backend that `make test` tests; empty for both.
BACKEND := $(filter-out auto,$(SHOAL_BACKEND))
ifneq ($(filter-out rust pure auto,$(SHOAL_BACKEND)),)
$(error SHOAL_BACKEND=$(SHOAL_BACKEND) is not a backend; expected rust, pure or auto (auto and unset test both))
endif

LOCK := requirements.lock
EXTENSION := python/shoal/_rust.abi3.so
RUST_SOURCES := Cargo.toml $(wildcard Cargo.lock rust/*/Cargo.toml) $(shell find $(filter-out rust/model/src,$(wildcard rust/*/src)) -name '*.rs')
PYTHON_SOURCES := $(shell find python -name '*.py' -o -name '*.pyi' -o -name py.typed -o -name '*.css' -o -name '*.js')

# cargo cannot use the job server of make, and warns of it.
CARGO := env -u MAKEFLAGS -u MFLAGS cargo

export UV_PYTHON_DOWNLOADS := never
# Makes uv trust the machine's certificates, as pip and cargo do, instead of its own.
export UV_SYSTEM_CERTS ?= true
# pyo3 and maturin use the interpreter of the active environment.
export VIRTUAL_ENV := $(CURDIR)/.venv
export PATH := $(CURDIR)/.venv/bin:$(PATH)
# Without compiled files every process would compile torch, which takes longer than its own work.
unexport PYTHONHOME PYTHONPATH PYTHONDONTWRITEBYTECODE

.PHONY: help
help: ## List the commands.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

.PHONY: setup
setup: .make/package ## Make .venv with all dependencies and the package, editable.

.PHONY: demo
demo: .make/package ## Set everything up and train CartPole, the main example.
	.venv/bin/python examples/cartpole/train.py $(ARGS)

# The Rust tests use a debug build, with overflow checks and debug assertions. nextest runs them if it
# is installed. The searches of shoal-model take as long as all others, so that they run only if
# something in rust/ differs from the main branch.
RUST_TESTS = $(shell cargo nextest --version >/dev/null 2>&1 && echo nextest run || echo test --all-targets)
.PHONY: test-rust
test-rust: .make/package ## Run the tests of the Rust crates; the searches of shoal-model if rust/ was changed.
	if .ci/changed rust Cargo.lock; then all=; else all='--exclude shoal-model'; fi; \
	$(CARGO) $(RUST_TESTS) --workspace --locked $$all
	$(CARGO) test --workspace --locked --doc

.PHONY: test-model
test-model: ## Search the states of the models of the shared-memory protocols (minutes).
	$(CARGO) $(RUST_TESTS) --package shoal-model --locked

# Searches every interleaving of a few threads under the memory model of Rust. All crates are built
# with other flags, so the build has its own folder.
.PHONY: test-loom
test-loom: ## Search the interleavings of the shared-memory queue with loom (minutes).
	RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=target/loom \
	  CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 \
	  nice -n 19 $(CARGO) test --release --locked --package shoal-shm --test loom -- --test-threads 1

# RUSTC_BOOTSTRAP lets a stable compiler use the sanitizer. The standard library is not instrumented;
# tsan.supp suppresses the reports that follow from that.
.PHONY: test-tsan
test-tsan: ## Run the threads of the shared-memory queue under ThreadSanitizer.
	export TSAN_OPTIONS=suppressions=$(CURDIR)/rust/shm/tests/tsan.supp RUSTC_BOOTSTRAP=1 \
	  RUSTFLAGS="-Zsanitizer=thread -Cunsafe-allow-abi-mismatch=sanitizer" CARGO_TARGET_DIR=target/tsan; \
	test="$(CARGO) test --locked --package shoal-shm --target $$(rustc -vV | sed -n 's/^host: //p')"; \
	$$test --test stress; $$test --lib two_mappings

# Tests come in two tiers. `make test` runs what every change needs: all tests but those marked
# nightly or timed, on the Rust core, and the vectors that both cores share on the pure one too.
# `make test-all` runs everything. SHOAL_BACKEND restricts `make test` to one core.
CORE := $(or $(BACKEND),rust)
PYTEST = SHOAL_BACKEND=$(1) .venv/bin/pytest tests --backend $(1) $(if $(BACKEND),--ignore tests/parity)
# ARGS may select no test of one run (pytest's exit code 5); no test of all runs is an error. Failed
# tests (1) do not end the command if they are noted for the second pass of .ci/run.
OR_NONE := || { code=$$?; test $$code = 5 || test $$code = 1 -a -s "$$SHOAL_FAILED_TESTS"; }
# Tests that wait for processes and timers leave the machine idle, so two run at once.
TWO := --numprocesses 2 --dist worksteal

# Compilers run before all tests, and one Ray beside the tests that need none: with more, they would
# wait for each other. ARGS that select one test may leave one leg without any.
.PHONY: test
test: $(if $(ARGS),test-selection) .make/package ## Set everything up and run the tests (SHOAL_BACKEND=rust|pure: on that core alone).
	+$(if $(filter pure,$(CORE)),,$(MAKE) test-rust)
	+$(MAKE) -j2 test-ray test-units

.PHONY: test-selection
test-selection: .make/package ## Check that ARGS selects a test of Python.
	$(call PYTEST,$(CORE)) --collect-only --quiet $(ARGS) | tail -n 1; exit "$${PIPESTATUS[0]}"

.PHONY: test-units
test-units: .make/package ## Run the Python tests that need no Ray.
	$(call PYTEST,$(CORE)) -m "not ray and not nightly and not timed" $(ARGS) $(OR_NONE)
ifeq ($(BACKEND),)
	$(call PYTEST,pure) -m "vectors and not nightly and not timed" $(ARGS) $(OR_NONE)
endif

.PHONY: test-ray
test-ray: .make/package ## Run the Python tests that need Ray.
	$(call PYTEST,$(CORE)) -m "ray and not nightly and not timed" $(ARGS) $(OR_NONE)

.PHONY: test-all
test-all: ## Run everything that there is (40 minutes); says when it last passed here.
	@if [ -e .make/test-all ]; then \
	  echo "make test-all last passed here $$(( ($$(date +%s) - $$(stat -c %Y .make/test-all)) / 3600 )) hours ago, at $$(cat .make/test-all)"; \
	else echo "make test-all never passed here"; fi
	.ci/run all
	@git describe --always --dirty >.make/test-all

.PHONY: test-nightly
test-nightly: .make/package ## Run the tests that are marked nightly.
	$(call PYTEST,rust) -m "not ray and nightly and not timed" $(TWO) $(ARGS) $(OR_NONE)
	$(call PYTEST,rust) -m "ray and nightly and not timed" $(ARGS) $(OR_NONE)

# Tests that take a core, by the fixture `backend`; on Ray, channels in shared memory use most of it.
.PHONY: test-pure
test-pure: .make/package ## Run on the pure core all tests that take a core.
	$(call PYTEST,pure) -m "core and not ray and not vectors and not timed" --ignore tests/parity $(TWO) $(ARGS) $(OR_NONE)
	SHOAL_BACKEND=pure .venv/bin/pytest tests/cluster/test_channel_*.py --backend pure -k shm -m "not timed" $(ARGS) $(OR_NONE)

.PHONY: test-timed
test-timed: .make/package ## Run the tests that bound elapsed time, on a quiet machine.
	$(call PYTEST,$(CORE)) -m "not ray and timed" $(ARGS) $(OR_NONE)
	$(call PYTEST,$(CORE)) -m "ray and timed" $(ARGS) $(OR_NONE)

.PHONY: lint
lint: lint-rust lint-python ## Check format, lints, types and the contract of both backends.

.PHONY: lint-rust
lint-rust: .make/package ## Check the Rust crates alone.
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings

.PHONY: lint-python
lint-python: .make/package ## Check the Python code alone.
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .
	.venv/bin/mypy
	.ci/stubtest
	.venv/bin/pytest -q tests/api/test_sources.py tests/api/test_layers.py

.PHONY: docs
docs: .make/package ## Build the documentation of the Rust crates.
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --locked

# Warnings are errors (mkdocs.yml). The date of the commit makes two builds of it equal. The theme
# warns in each build of MkDocs 2, which the extra `docs` excludes.
.PHONY: site
site: .make/docs-dependencies ## Build the documentation site into target/site.
	SOURCE_DATE_EPOCH=$${SOURCE_DATE_EPOCH:-$$(git log -1 --format=%ct)} NO_MKDOCS_2_WARNING=1 \
	  .venv/bin/mkdocs build --clean

# On the build that users get.
.PHONY: bench
bench: .make/release ## Run the benchmarks, with installed rivals.
	.venv/bin/pytest benches -o timeout=1200 -o faulthandler_timeout=1100 $(ARGS)

.PHONY: wheel
wheel: .make/wheel ## Build the wheel and the source distribution into dist/.

.PHONY: counts
counts: ## Count the loops, twins and lines on the way of a message.
	@python3 .ci/counts.py $(ARGS)

.PHONY: gpu-bundle
gpu-bundle: .make/wheel ## Pack what `.ci/gpu` needs on a machine without a network, into target/gpu.
	.venv/bin/python .ci/gpu_bundle.py dist/*.whl target/gpu/bundle.tar.xz

.PHONY: test-gpu
test-gpu: gpu-bundle ## Run from that bundle the tests that need a GPU, and the programs in ARGS.
	.ci/gpu $(ARGS)

# The versions for the oldest Python and all later ones. pyproject.toml's ranges stay open.
.PHONY: lock
lock: .venv/pyvenv.cfg ## Renew requirements.lock, the versions that developers and CI install.
	$(UV) pip compile pyproject.toml --all-extras --universal --python-version 3.11 --upgrade \
	  --no-annotate --custom-compile-command "make lock" --quiet --output-file $(LOCK)

.PHONY: clean
clean: ## Remove everything that these commands made, including .venv.
	rm -rf .make .venv dist outputs target $(EXTENSION)
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find .ci python tests benches examples -name __pycache__ -prune -exec rm -rf {} +

# The target is pyvenv.cfg and not bin/python, because that is a link to an older file.
.venv/pyvenv.cfg:
	@for candidate in $(PYTHONS); do \
	  if "$$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	    if command -v uv >/dev/null; then uv venv --quiet --allow-existing --python "$$(command -v $$candidate)" .venv; \
	    else "$$candidate" -m venv .venv && .venv/bin/pip install --quiet --constraint $(LOCK) uv; fi; exit; \
	  fi; \
	done; \
	echo "make: none of '$(PYTHONS)' is Python 3.11 or newer; name one: make PYTHONS=/path/to/python3" >&2; exit 1

.make/dependencies: pyproject.toml $(LOCK) .venv/pyvenv.cfg
	$(UV) pip install --constraint $(LOCK) --requirements pyproject.toml --extra dev --extra examples
	mkdir -p .make && touch $@

.make/docs-dependencies: pyproject.toml $(LOCK) .venv/pyvenv.cfg
	$(UV) pip install --constraint $(LOCK) --requirements pyproject.toml --extra docs
	mkdir -p .make && touch $@

# Optimised, but without link-time optimisation, which takes longer than all the rest. The stamps
# depend on the extension that both recipes make: it is built again if it is missing, or if it is from
# the other recipe or built by hand.
.make/package: PROFILE := develop
.make/release: PROFILE := release
.make/package .make/release: .make/dependencies pyproject.toml $(RUST_SOURCES) $(EXTENSION)
	@command -v cargo >/dev/null || { echo "make: no cargo in the path; install Rust $(shell sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml) or newer" >&2; exit 1; }
	env -u MAKEFLAGS -u MFLAGS .venv/bin/maturin develop --profile $(PROFILE) --locked --uv
	touch $@

$(EXTENSION): ;

.make/wheel: .make/dependencies pyproject.toml README.md LICENSE $(RUST_SOURCES) $(PYTHON_SOURCES)
	rm -rf dist
	.venv/bin/maturin build --release --locked --out dist
	.venv/bin/maturin sdist --out dist
	touch $@
