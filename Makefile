# Every command that a developer needs; `make help` lists them.
# Settings: PYTHON (3.12 or newer, for the project), PEERS_PYTHON (3.10 to 3.13, for torch and transformers),
# PIP_ARGS (extra arguments of every pip install), TESTS (what `make test` runs).

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

PYTHON ?=
PEERS_PYTHON ?=
PIP_ARGS ?=
TESTS ?= tests

VENV := .venv
PEERS := .venv-peers
AOT := .venv-aot
BIN := $(VENV)/bin
# jax finds the compilers beside it, and leaves the GPU that is missing alone.
COMPILING = PYTHONPATH=$(CURDIR)/$(AOT) JAX_PLATFORMS=cpu
INSTALL = -m pip install --quiet --disable-pip-version-check $(PIP_ARGS)

PAIR := dspine_jax/assets/tiny-pair
PROMPT := dspine_jax/assets/demo_prompt.py
# The bundled pair is stored in bfloat16; float32 holds the same values and makes both ways of decoding exact.
DEMO_PAIR := build/tiny-pair
# Further arguments of `make bench`, such as --markdown for the table of the README.
BENCH ?=
# Further arguments of `make serve` and `make soak`.
SERVE ?=
SOAK ?=
# The interpreter of `make device-check`: one whose jax sees the GPU.
DEVICE_PYTHON ?= $(BIN)/python

# Candidates are run, not only found: a version manager may put names on the PATH that do not work.
PYENV := $(HOME)/.pyenv/versions
PYTHONS = python3.12 python3.13 python3.14 python3 $(wildcard $(PYENV)/3.1[2-9]*/bin/python3)
PEERS_PYTHONS = python3 python3.11 python3.12 python3.13 python3.10 $(wildcard $(PYENV)/3.1[0-3]*/bin/python3)

# $(call find_python,candidates,oldest,newest,override variable,purpose) prints the first interpreter that has a
# version in the range and can make environments.
define find_python
$$(for candidate in $(1); do \
    if "$$candidate" -c 'import sys, venv, ensurepip; sys.exit(not ($(2)) <= sys.version_info[:2] <= ($(3)))' \
        >/dev/null 2>&1; then echo "$$candidate"; exit 0; fi; \
done; \
echo "No Python found for $(5): wanted version ($(2)) to ($(3)) with the venv module, tried: $(1)." >&2; \
echo "Install one, or name it: make $(4)=/path/to/python3" >&2; \
exit 1)
endef

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "%-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: setup
setup: $(VENV)/.stamp ## make the environment of the project (.venv)

$(VENV)/.stamp: requirements.lock pyproject.toml
	@python=$(call find_python,$(or $(PYTHON),$(PYTHONS)),3$(comma) 12,3$(comma) 99,PYTHON,the project); \
	if ! $(BIN)/python -c '' >/dev/null 2>&1; then rm -rf $(VENV); "$$python" -m venv $(VENV); fi
	@echo "Installing the locked packages into $(VENV)"
	@$(BIN)/python $(INSTALL) --requirement requirements.lock
	@$(BIN)/python $(INSTALL) --no-deps --editable .
	@touch $@

# torch and transformers, which the tests compare with, in a process and an environment of their own.
$(PEERS)/.stamp: pyproject.toml $(VENV)/.stamp
	@python=$(call find_python,$(or $(PEERS_PYTHON),$(PEERS_PYTHONS)),3$(comma) 10,3$(comma) 13,PEERS_PYTHON,the peers); \
	if ! $(PEERS)/bin/python -c '' >/dev/null 2>&1; then rm -rf $(PEERS); "$$python" -m venv $(PEERS); fi
	@echo "Installing the peers into $(PEERS)"
	@$(PEERS)/bin/python $(INSTALL) $$($(BIN)/python -c 'import tomllib; \
	    project = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
	    print(*project["optional-dependencies"]["peers"])')
	@touch $@

# The packages that compile GPU programs without a GPU. They lie apart from .venv, since there jax would try to start
# the GPU that is missing, and complain, in every command.
$(AOT)/.stamp: pyproject.toml $(VENV)/.stamp
	@echo "Installing the GPU compilers into $(AOT)"
	@rm -rf $(AOT)
	@$(BIN)/python $(INSTALL) --no-deps --target $(AOT) $$($(BIN)/python -c 'import tomllib; \
	    project = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
	    print(*project["optional-dependencies"]["aot"])')
	@touch $@

comma := ,

.PHONY: demo
demo: $(DEMO_PAIR)/manifest.json ## convert the bundled pair and let it continue a Python file
	$(BIN)/dspine generate $(DEMO_PAIR) --prompt-file $(PROMPT) --max-new-tokens 256 --stats --compare-plain

$(DEMO_PAIR)/manifest.json: $(VENV)/.stamp $(wildcard $(PAIR)/*/*)
	@mkdir -p build
	$(BIN)/dspine convert --target $(PAIR)/target --draft $(PAIR)/draft --out $(DEMO_PAIR) --dtype float32 --overwrite

.PHONY: serve
serve: $(DEMO_PAIR)/manifest.json ## serve the bundled pair at http://127.0.0.1:8000, with a web page
	$(BIN)/dspine serve $(DEMO_PAIR) $(SERVE)

.PHONY: soak
soak: $(VENV)/.stamp ## three minutes of clients, faults, a kill and a drain against a real server
	@$(BIN)/python -m tests.soak $(SOAK)

.PHONY: bench
bench: $(DEMO_PAIR)/manifest.json ## acceptance and speed of the bundled pair on files it never saw
	$(BIN)/dspine bench $(DEMO_PAIR) --concurrency 1 4 8 --ablate bridge,tail,both --json build/bench.json $(BENCH)

.PHONY: device-check
device-check: ## on a machine with a GPU: losslessness there, and what a cycle costs at 27B sizes
	$(DEVICE_PYTHON) -m tests.device_check

.PHONY: test
test: $(VENV)/.stamp $(PEERS)/.stamp $(AOT)/.stamp ## run the whole test suite
	@$(COMPILING) $(BIN)/python -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder $(TESTS)

.PHONY: test-kernels
test-kernels: $(VENV)/.stamp $(AOT)/.stamp ## run the tests of the GPU kernels alone
	@$(COMPILING) $(BIN)/python -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder -m kernels $(TESTS)

.PHONY: kernels-report
kernels-report: $(VENV)/.stamp $(AOT)/.stamp ## compile every GPU kernel at 27B sizes; write docs/kernels-report.md
	@$(COMPILING) $(BIN)/python -m tests.kernels.report

.PHONY: lint
lint: $(VENV)/.stamp ## check style and formatting
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check

.PHONY: typecheck
typecheck: $(VENV)/.stamp ## check types
	@$(BIN)/pyright

.PHONY: golden
golden: $(PEERS)/.stamp ## write the reference values of the tests again, with the peers
	$(BIN)/python tests/golden/make_golden.py
	$(PEERS)/bin/python tests/golden/make_names.py tests/golden/qwen3_8_27b_names.json.gz

.PHONY: lock
lock: ## write requirements.lock: what the ranges in pyproject.toml resolve to today
	@rm -rf build/lock && mkdir -p build
	@python=$(call find_python,$(or $(PYTHON),$(PYTHONS)),3$(comma) 12,3$(comma) 99,PYTHON,the project); \
	"$$python" -m venv build/lock
	@build/lock/bin/python $(INSTALL) --editable '.[serve,plot,dev]'
	@{ echo '# Written by `make lock`: the base, serve, plot and dev packages.'; \
	    build/lock/bin/python -m pip freeze --exclude-editable; } > build/requirements.lock
	@mv build/requirements.lock requirements.lock
	@rm -rf build/lock

.PHONY: clean
clean: ## remove what the commands wrote, except the environments
	@rm -rf build dist *.egg-info .pytest_cache .ruff_cache
	@find . -name __pycache__ -type d -not -path './.venv*' -prune -exec rm -rf {} +
