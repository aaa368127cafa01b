# `make book` builds the site, `make test` runs every test; both set up .venv first and re-use it afterwards.

PYTHON ?= python3
VENV   ?= .venv
PY     := $(VENV)/bin/python
STAMP  := $(VENV)/.tutorial-environment
SITE   := _build/html

# The profiler's C++ side writes progress lines to stderr, and they would land on the pages: keep it quiet.
export KINETO_LOG_LEVEL := 99
# The kernel called python3 is the one in $(VENV), even where the user has registered another of that name.
export JUPYTER_PREFER_ENV_PATH := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# That a machine is busy while a page is made says nothing to those who read it.
export PYTHONWARNINGS := ignore:this machine was busy
# A backend forced from outside would leave the pages without figures; search paths would bring in other packages.
unexport MPLBACKEND PYTHONPATH PYTHONHOME

.DEFAULT_GOAL := help
.PHONY: help env book test outputs claims address clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-9s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

env: $(STAMP) ## create or update .venv with the pinned packages

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "$(PYTHON) is missing or older than 3.11; name a newer one: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 1; }
	@$(PY) -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV) || \
	  { echo "No virtual environment could be made: on Debian and Ubuntu, apt install python3-venv" >&2; exit 1; }
	@echo "Installing the pinned packages into $(VENV) (some minutes the first time: torch is large)"
	@$(PY) -m pip install --quiet -c constraints.txt -e '.[book,test,triton,models]'
	@touch $@

book: $(STAMP) ## execute every chapter on this machine, build the site and check it
	@rm -rf _build
	@$(VENV)/bin/jupyter-book build . -n -W --keep-going
	@$(PY) tools/check_site.py $(SITE)
	@echo
	@echo "The site is $(SITE)/index.html; open it in a browser, or serve it on port 8000 with"
	@echo "  $(PY) -m http.server -d $(SITE) 8000"

test: $(STAMP) ## unit tests, then every chapter cell by cell against its stored outputs
	@status=0; \
	$(PY) -m pytest || status=1; \
	$(PY) -m pytest --nbval --nbval-current-env --nbval-cell-timeout=600 \
	  --nbval-sanitize-with tests/nbval_sanitize.cfg book/*.ipynb || status=1; \
	exit $$status

outputs: $(STAMP) ## run the chapters and store their outputs: all, or CHAPTER=book/linear.ipynb
	@$(PY) tools/outputs.py $(CHAPTER)

claims: $(STAMP) ## check the published claims here, store the outcome and write the ledger's page
	@$(PY) -m pytest -q -m claims --claims-json tutorial_lib/data/claims_checked.json
	@$(PY) tools/claims.py

address: $(STAMP) ## show the repository's address; set it with URL=https://github.com/OWNER/NAME, unset with URL=
	@$(PY) tools/address.py $(if $(filter command,$(origin URL)),'$(URL)')

clean: ## remove the built site (and nothing else; .venv stays)
	@rm -rf _build
