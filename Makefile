# Everything that a developer or CI does. `make help` lists it; no target needs another one run before it.
PYTHON ?= python3
BIN := .venv/bin
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:

.PHONY: help
help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 16

# Tests are of the server with its extension in C: without it they fail, rather than pass on the Python that stands in
# for it. Elsewhere it is built where there is a compiler. PD_HANDOFF_NATIVE=auto or =off, put before make, overrides.
test pytest faults: export PD_HANDOFF_NATIVE ?= required

.PHONY: setup
setup: .venv/.native ## Make .venv with the package, the command and every tool that the tests use

.venv/.complete: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "needs Python 3.10 or later; name it: make PYTHON=python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' || { echo "needs Python's venv module (Debian: apt-get install python3-venv)" >&2; exit 1; }
	@echo "Setting up .venv, about 1.5 GB; the first time takes a minute or two ..."
	[ -x $(BIN)/python ] || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -qq --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install -qq -c constraints.txt -e '.[server,demo]' --group test --group lint
	@touch $@

# The extension again when its sources change. Where there is none for want of a compiler, each target looks anew.
.venv/.native: .venv/.complete tools/hatch_build.py $(wildcard service/pd_handoff_server/native/*.[ch])
	$(BIN)/python -m pip install -qq --no-deps --no-build-isolation -e .
	@if compgen -G 'service/pd_handoff_server/native/*.so' >/dev/null; then touch $@; \
	else echo "no C extension: the server reads requests in pure Python (CONTRIBUTING.md)" >&2; fi

.venv-gen/.complete: tools/gen-requirements.txt
	[ -x .venv-gen/bin/python ] || $(PYTHON) -m venv .venv-gen
	.venv-gen/bin/python -m pip install -qq -r tools/gen-requirements.txt
	@touch $@

.PHONY: demo
demo: setup ## Hand first tokens from a real prefill process to a real decode process
	$(BIN)/python -m examples.demo

.PHONY: test
test: lint gen-check pytest ## Run every check and every test

.PHONY: pytest
pytest: setup ## Run the tests alone
	$(BIN)/python -m pytest $(PYTEST_ARGS)

.PHONY: lint
lint: setup ## Check style, types, the arrows between the packages, and the schema
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy $(foreach d,tests typing_tests examples bench tools,$(if $(shell find $(d) -name '*.py' -print -quit 2>/dev/null),$(d)))
	$(BIN)/lint-imports --no-logo
	$(BIN)/buf lint
	$(BIN)/buf format --diff --exit-code
	$(BIN)/buf breaking --against protos/baseline.binpb

.PHONY: format
format: setup ## Put style right where that is safe
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/buf format --write

.PHONY: gen
gen: .venv-gen/.complete ## Renew the generated code and the descriptor set from protos/
	tools/gen.sh .venv-gen/bin/python clients/python

.PHONY: gen-check
gen-check: .venv-gen/.complete ## Fail when the generated code is not what protos/ generate
	tools/check-gen.sh .venv-gen/bin/python

.PHONY: faults
faults: setup ## Break everything on purpose, at length, and count what is lost
	$(BIN)/python -m tests.faults

.PHONY: test-sglang
test-sglang: setup ## Compare with the real SGLang class, in an environment of its own
	tools/test-sglang.sh

.PHONY: test-grpcio
test-grpcio: setup ## Run a short form of the tests on older releases of gRPC, in environments of their own
	tools/test-grpcio.sh

.PHONY: bench
bench: setup ## Measure everything, beside its peers
	$(BIN)/python -m bench

.PHONY: bench-quick
bench-quick: setup ## The same in under 90 seconds
	$(BIN)/python -m bench --quick

.PHONY: clean
clean: ## Remove all that the other targets made
	rm -rf .venv .venv-* build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	rm -f service/pd_handoff_server/native/*.so
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
