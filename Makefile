# Makefile: everything from a fresh checkout; each target sets up what it needs, once.
#
#   make demo    train two small networks on handwritten digits, eagerly and lazily
#   make test    all tests, C++ and Python
#   make bench   all measurements (BENCH="steps engine": some)
#   make lint    format, lint, types, layers
#   make tsan    C++ tests under ThreadSanitizer        make asan    under Address- and UBSanitizer
#   make soak    all of lazyeng under AddressSanitizer: random programs for SOAK seconds (1800), tests
#   make versions  build and test with other Pythons and torches: VERSIONS="3.12/2.15 ...", or the
#                  default of tools/versions.sh
#
# Settings: PYTHON (3.11 to 3.13), VENV, TORCH (what pip installs), MAX_JOBS (compilers at once).
PYTHON ?= python3
VENV ?= .venv
TORCH ?= torch==2.13.0
PYTEST_ARGS ?= -n 2 --dist worksteal

bin := $(VENV)/bin
pip := $(bin)/python -m pip install --quiet --disable-pip-version-check
torch_stamp := $(VENV)/torch.$(subst =,-,$(TORCH)).stamp
cpp_tests := BUILD="$${BUILD:-$(CURDIR)/build/cpp-tests}" sh tests/cpp/run.sh
sources := $(shell find csrc triton_kernels -type f -not -name '*.pyc')
cpp_files := $(shell find csrc tests/cpp -name '*.h' -o -name '*.cpp')

.PHONY: demo test cpp-test py-test bench lint format tsan asan soak versions build clean
.DELETE_ON_ERROR:
.NOTPARALLEL:

demo: build $(VENV)/test.stamp
	$(bin)/python examples/train_digits.py

test: cpp-test py-test

cpp-test:
	$(cpp_tests) plain

py-test: build $(VENV)/test.stamp
	$(bin)/python -m pytest $(PYTEST_ARGS)

tsan asan:
	$(cpp_tests) $@

soak: $(VENV)/test.stamp
	$(bin)/python tools/requirements.py build | $(pip) numpy -r /dev/stdin
	PYTHON=$(abspath $(bin)/python) sh tools/sanitize.sh address

versions:
	sh tools/versions.sh $(VERSIONS)

bench: build $(VENV)/test.stamp
	$(bin)/python -m benchmarks $(BENCH)

lint: build $(VENV)/test.stamp $(VENV)/lint.stamp
	$(bin)/ruff format --check .
	$(bin)/ruff check .
	$(bin)/python tools/documented_programs.py build/documented
	$(bin)/pyright --pythonpath $(bin)/python
	$(bin)/clang-format --dry-run -Werror $(cpp_files)
	$(bin)/python tools/check_imports.py
	$(bin)/python tools/api_reference.py --check

format: $(VENV)/lint.stamp
	$(bin)/ruff check --fix-only .
	$(bin)/ruff format .
	$(bin)/clang-format -i $(cpp_files)

build: $(VENV)/build.stamp

# An editable install: a change of a Python file needs no build, and ninja compiles what changed.
$(VENV)/build.stamp: $(torch_stamp) $(sources) setup.py pyproject.toml
	@echo "building lazyeng._C (a few minutes the first time)"
	$(bin)/python tools/requirements.py build | $(pip) numpy -r /dev/stdin
	$(pip) --no-build-isolation --no-deps --editable .
	@touch $@

$(VENV)/test.stamp: $(torch_stamp) pyproject.toml
	$(bin)/python tools/requirements.py test | $(pip) -r /dev/stdin
	@touch $@

$(VENV)/lint.stamp: $(VENV)/python.stamp pyproject.toml
	$(bin)/python tools/requirements.py lint | $(pip) -r /dev/stdin
	@touch $@

$(torch_stamp): $(VENV)/python.stamp
	@echo "installing $(TORCH)"
	$(pip) "$(TORCH)"
	@rm -f $(VENV)/torch.*.stamp
	@touch $@

$(VENV)/python.stamp:
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(not (3, 11) <= v <= (3, 13) and \
	  "lazyeng needs Python 3.11 to 3.13, and $(PYTHON) is %d.%d: make PYTHON=python3.11" % v)'
	$(PYTHON) -m venv $(VENV)
	@touch $@

clean:
	rm -rf build dist *.egg-info lazyeng/_C.*.so lazyeng/_build_info.py $(VENV)/build.stamp
