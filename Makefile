# make demo   judge the example candidates alone and inside a whole model
# make test   the CPU test-suite: of tests for every kernel, case or candidate a sample (tests/budget.py)
# make test-all    all of it: before a release, and after changes in judge/, measure/ or runner/
# make check  what CI runs: lint, types, make test
# EXTRAS=dev,reference in a fresh checkout adds the libraries that some parity tests compare with, and skip without
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
EXTRAS ?= dev
FK := $(BIN)/fk
comma := ,
# A folder that only the processes of some parity tests have on their path: tests/parity/apart.txt says why.
APART := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-deps --upgrade \
	--target $(VENV)/apart -r tests/parity/apart.txt

.PHONY: demo test test-all test-seconds check lint types cases docs clean

# One of the examples is wrong on purpose (exit 1); a busy machine gives unstable ratios and says so (exit 3).
demo: $(VENV)/.installed
	$(FK) kernels --target rms_norm --architecture llama --candidates examples/candidates ; case $$? in 0|1|3) ;; *) exit 1 ;; esac
	$(FK) eval --model llama --size tiny --candidates examples/candidates/faster || test $$? -eq 3
	$(FK) eval --model llama --size tiny --candidates examples/candidates/slower || test $$? -eq 3

# Two at a time, but those that say by times which candidate is faster. Who has run what it was given takes over
# what the other has not begun: tests that lie beside each other take milliseconds in one folder, seconds in another.
TIMED := tests/e2e/test_redteam.py tests/e2e/test_gate_times.py
test: $(VENV)/.installed
	$(BIN)/python -m pytest -n 2 --dist worksteal $(addprefix --ignore=,$(TIMED)) $(TEST_FLAGS) $(TAKEN:%=--seconds=%/together.json)
	$(BIN)/python -m pytest $(TIMED) $(TEST_FLAGS) $(TAKEN:%=--seconds=%/timed.json)

test-all:
	$(MAKE) test TEST_FLAGS=--whole

# What the tests take, and would at 48 architectures; on a machine that does nothing else.
test-seconds: $(VENV)/.installed
	mkdir -p $(VENV)/taken
	$(MAKE) test TAKEN=$(VENV)/taken
	$(BIN)/python benchmarks/test_seconds.py $(VENV)/taken/*.json --out benchmarks/cpu/test_seconds.json
	$(MAKE) docs

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed
	$(BIN)/pyright

check: lint types test

# Facts and pages that are generated: tests fail when they are stale.
cases: $(VENV)/.installed
	$(BIN)/python scripts/build_cases.py

docs: $(VENV)/.installed
	$(BIN)/python scripts/build_benchmarks_page.py

clean:
	rm -rf $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt tests/parity/apart.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "FastKernels needs Python >= 3.10")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[$(EXTRAS)]'
	$(if $(filter reference,$(subst $(comma), ,$(EXTRAS))),$(APART))
	touch $@
