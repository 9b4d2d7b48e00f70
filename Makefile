# `make test` and `make demo` do everything on a fresh machine; the other targets are parts of them.
SHELL := /bin/bash
BIN := .venv/bin
export OMP_WAIT_POLICY := PASSIVE
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help setup test test-slow test-packages test-verl lint docs reference demo bench wheel space clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: .venv/.ready  ## prepare .venv with everything, at the pinned versions

.venv/.ready: pyproject.toml constraints.txt scripts/setup
	scripts/setup

test: setup lint  ## set up, lint, type-check, and run all tests
	$(BIN)/python -m pytest -n auto

test-slow: setup  ## train SmolLM2 for real, run teams of a dozen frameworks and a real vLLM (installs 7 GB), more property tests; an hour on two idle cores
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[worlds]'
	HYPOTHESIS_PROFILE=explore $(BIN)/python -m pytest -n auto tests/unit
	$(BIN)/python -m pytest -m slow
	$(MAKE) test-verl

test-packages: setup  ## install the wheel and its extras from the package index, as a user would (needs the network)
	$(BIN)/python -m pytest -m slow tests/slow/test_packages.py

test-verl: .venv-verl/.ready  ## the verl engine on Ray, in .venv-verl (installs 1.5 GB); more than an hour on two idle cores
	scripts/test-verl $(TESTS)

.venv-verl/.ready: pyproject.toml constraints-verl.txt scripts/setup-verl
	scripts/setup-verl

lint: setup  ## ruff, mypy --strict, import contracts, spelling, links and prose of the documentation
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/codespell
	$(BIN)/python scripts/lint_docs.py

docs: setup  ## build the documentation site into build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build
	@echo "open build/site/index.html"

reference: setup  ## write docs/reference/ anew from the commands and settings
	$(BIN)/python scripts/reference.py

demo: setup  ## set up, then teach, distil, fine-tune, reinforce and evaluate on the embedded world (DEMO=--quick)
	scripts/demo $(DEMO)

bench: setup  ## measure every part, and the tools it is compared with
	$(BIN)/python -m benchmarks.codec
	$(BIN)/python -m benchmarks.ledger
	$(BIN)/python -m benchmarks.runtime
	$(BIN)/python -m benchmarks.distill
	$(BIN)/python -m benchmarks.engine 2>/dev/null
	$(BIN)/python -m benchmarks.decoding
	$(BIN)/python -m benchmarks.grammar
	$(BIN)/python -m benchmarks.sandbox
	$(BIN)/python -m benchmarks.sft
	$(BIN)/python -m benchmarks.evaluate
	$(BIN)/python -m benchmarks.growth
	$(BIN)/python -m benchmarks.rl
	$(BIN)/python -m benchmarks.tools 100000 1000000
	$(BIN)/python -m benchmarks.crawl
	$(BIN)/python -m benchmarks.gateway
	$(BIN)/python -m benchmarks.serve
	$(BIN)/python -m benchmarks.view
	$(BIN)/python -m benchmarks.scaling
	$(BIN)/python -m benchmarks.cluster
	$(BIN)/python -m benchmarks.report

wheel: setup  ## build the wheel into dist/
	rm -rf build/lib build/bdist.* dist/*.whl
	$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .

space: wheel  ## put what a Hugging Face Space needs into build/space (see its README.md)
	rm -rf build/space && mkdir -p build/space
	cp deploy/space/README.md deploy/space/Dockerfile constraints.txt dist/*.whl build/space

clean:  ## remove .venv and caches
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist
