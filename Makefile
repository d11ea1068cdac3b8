# make book | test | quick | serve | results | pdf | student | instructor | lint | clean
# (each sets up .venv from the lock first)
PYTHON ?= python3
PORT ?= 8000
JOBS ?= 2
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

RUN := .venv/bin/python
NOTEBOOKS := $(RUN) book/tools/notebooks.py
EDITIONS := $(RUN) book/tools/editions.py
TEACHING := $(RUN) book/tools/teaching.py
# jupyter-book always appends _build to --path-output, so the quick build lies in _build/quick/_build.
QUICK := _build/quick/_build

.PHONY: help book quick html test serve results gpu pdf student instructor lint format clean environment

help:  ## list the commands
	@awk -F ':.*## ' '/^[a-z]+:.*## /{printf "make %-12s %s\n", $$1, $$2}' Makefile

book: environment  ## run the notebooks and build the book into _build/html
	@$(NOTEBOOKS) sync
	@$(TEACHING)
	@$(NOTEBOOKS) run --preset live --jobs $(JOBS)
	@.venv/bin/jupyter-book build . --warningiserror --nitpick --keep-going --quiet
	@echo "The book is built. Open _build/html/index.html, or run: make serve"

quick: environment  ## the same with every notebook at its smallest size, into _build/quick
	@$(NOTEBOOKS) check
	@$(NOTEBOOKS) run --preset smoke --jobs $(JOBS) --executed $(QUICK)/executed
	@.venv/bin/jupyter-book build . --path-output _build/quick --warningiserror --nitpick --keep-going --quiet
	@echo "The quick book is built: $(QUICK)/html/index.html"

test: quick  ## run all tests, the built pages in a real browser among them
	@UNROLLED_BUILD=$(QUICK) OMP_NUM_THREADS=1 $(RUN) -m pytest -n $(JOBS) --dist loadgroup

serve: environment  ## show the built book on localhost
	@test -f _build/html/index.html || { echo "There is no book yet. Run: make book" >&2; exit 1; }
	@echo "Serving the book at http://127.0.0.1:$(PORT)/ (Ctrl-C stops it)"
	@$(RUN) -m http.server $(PORT) --bind 127.0.0.1 --directory _build/html

results: environment  ## make the committed result rows again and compare them
	@$(RUN) book/tools/remake_results.py --jobs $(JOBS)

gpu: environment  ## try the package on this machine's GPU, without a network; rows with its name
	@$(RUN) book/tools/gpu.py

pdf: environment  ## print the built book into _build/unrolled.pdf
	@test -f _build/html/index.html || { echo "There is no book yet. Run: make book" >&2; exit 1; }
	@$(RUN) book/tools/print_book.py _build/html _build/unrolled.pdf

student: environment  ## notebooks with stubs in place of solutions, and a zip (NBGRADER=1: with grading)
	@$(EDITIONS) student $(if $(NBGRADER),--nbgrader)

instructor: environment  ## notebooks with open solutions, run, and hints on usual mistakes, and a zip
	@$(EDITIONS) instructor --jobs $(JOBS) $(if $(NBGRADER),--nbgrader)

lint: environment  ## check style, and that the Colab copies are in step
	@$(RUN) -m ruff format --check .
	@$(RUN) -m ruff check .
	@$(NOTEBOOKS) check
	@$(TEACHING) check

format: environment  ## rewrite the sources in the house style
	@$(RUN) -m ruff format .
	@$(RUN) -m ruff check --fix .
	@$(NOTEBOOKS) sync
	@$(TEACHING)

clean:  ## remove what was built (the environment stays)
	rm -rf _build dist

environment: .venv/.ready

.venv/.ready: requirements.lock pyproject.toml
	@command -v git >/dev/null || { echo "Git is missing: install it, then run make again." >&2; exit 1; }
	@command -v "$(PYTHON)" >/dev/null || { echo "Python 3.11 or newer is missing ('$(PYTHON)' was not found): install it, or name it: make PYTHON=/path/to/python3" >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed, and '$(PYTHON)' is $$("$(PYTHON)" -V): name another: make PYTHON=/path/to/python3" >&2; exit 1; }
	@"$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || { echo "Python's venv module is missing: install it (on Debian: apt install python3-venv), then run make again." >&2; exit 1; }
	@echo "Setting up .venv from requirements.lock (about 6 GB with torch; once)"
	@test -x $(RUN) || "$(PYTHON)" -m venv .venv
	@$(RUN) -m pip install --quiet --disable-pip-version-check --requirement requirements.lock
	@$(RUN) -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@
