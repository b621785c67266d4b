# Every target creates .venv when it is missing and installs what it needs, once,
# and again only when pyproject.toml or constraints.txt changed.
PYTHON ?= python3
VENV   ?= .venv
OUT    ?= results
BIN    := $(VENV)/bin

.PHONY: help demo paper best ablation compare test lint format docs docs-check bench clean
.DEFAULT_GOAL := help

help: ## show this list
	@echo "pyro-deeponet: Bayesian operator learning in Pyro. Usage: make <target>"
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  %-10s %s\n", $$1, $$2}' Makefile
	@echo "Settings: PYTHON=python3.x (3.10 or newer), VENV=path, OUT=folder for figures and results"

demo: $(VENV)/.installed-base ## learn the anti-derivative operator: table and figures in a minute
	@$(BIN)/python -m experiments.antiderivative --preset quick --out $(OUT)/demo

paper: $(VENV)/.installed-base ## run the paper's four problems with its settings, hours of work
	@$(BIN)/python -m experiments.all --preset paper --out $(OUT)

best: $(VENV)/.installed-base ## run them with our settings, hours of work
	@$(BIN)/python -m experiments.all --preset best --out $(OUT)

ablation: $(VENV)/.installed-base ## undo our choices one at a time on one problem, an hour of work
	@$(BIN)/python -m experiments.ablation

compare: $(VENV)/.installed-base ## compare priors, guides and inference on little noisy data, half an hour
	@$(BIN)/python -m experiments.compare

test: $(VENV)/.installed-test ## run the tests, examples in docstrings and README included
	@$(BIN)/python -m pytest -q -n 2

lint: $(VENV)/.installed-dev ## check style (ruff) and types (mypy)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

format: $(VENV)/.installed-dev ## let ruff put the code in shape
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

docs: $(VENV)/.installed-docs ## build the site, tutorials run anew; warnings are errors
	@OMP_NUM_THREADS=1 $(BIN)/python -m sphinx -q -W --keep-going docs docs/_build/html
	@echo "Look at docs/_build/html/index.html"

docs-check: docs ## open every page of the site in headless Chromium: links, figures, formulas
	@$(BIN)/python docs/check_site.py docs/_build/html

bench: $(VENV)/.installed-base ## measure speed, memory and robustness for docs/benchmarks.md, ten minutes
	@missed=0; for name in data step predict ensemble robustness; do \
	  $(BIN)/python -m experiments.benchmarks.$$name --json docs/benchmarks/$$name.json || missed=1; \
	done; \
	$(BIN)/python -m experiments.benchmarks.page && $(BIN)/python -m experiments.readme && exit $$missed

clean: ## remove .venv, caches and results
	@rm -rf $(VENV) $(OUT) build dist .pytest_cache .ruff_cache .mypy_cache .hypothesis docs/_build
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null || { \
	  echo "pyro-deeponet needs Python 3.10 or newer; '$(PYTHON)' is $$($(PYTHON) --version 2>/dev/null || echo 'not installed')."; \
	  echo "Install one and say which: make PYTHON=python3.11 ..."; exit 1; }
	@echo "Creating $(VENV)"
	@$(PYTHON) -m venv $(VENV) || { \
	  echo "'$(PYTHON) -m venv' failed, see above. On Debian and Ubuntu: apt install python3-venv"; exit 1; }
	@touch $@

$(VENV)/.installed-%: pyproject.toml constraints.txt | $(VENV)/.created
	@echo "Installing pyro-deeponet ($*) into $(VENV); the first time takes a few minutes"
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt \
	  -e '.$(if $(filter base,$*),,[$*])'
	@touch $@
