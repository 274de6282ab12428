# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help venv dev demo lab-up lab-down scenario lint test sanity lock

# The first interpreter that is new enough; make venv PYTHON=/path/to/python3 decides otherwise.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python3.14; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
VENV ?= .venv
BIN := $(VENV)/bin
LAB_HOSTS ?= 3
LAB_BASE_PORT ?= 31001
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
LAB := $(BIN)/python tests/lab/lab.py
export PATH := $(shell realpath -m $(BIN)):$(PATH)
export LC_ALL := C.UTF-8

help: ## Show this help
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

venv: $(VENV)/.runtime ## Install the controller's tools into .venv, versions from the lock

dev: $(VENV)/.dev ## Install the tools for lint and test as well

$(VENV)/bin/python:
	@test -n '$(PYTHON)' || { echo 'gpufleet needs Python 3.11 or newer: make venv PYTHON=/path/to/python3' >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo '$(PYTHON) is not Python 3.11 or newer' >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo 'on Debian and Ubuntu: apt-get install python3-venv' >&2; exit 1; }

$(VENV)/.runtime: requirements/runtime.txt | $(VENV)/bin/python
	@$(PIP) install --require-hashes -r $<
	@touch $@

$(VENV)/.dev: requirements/dev.txt $(VENV)/.runtime
	@$(PIP) install --require-hashes -r $<
	@touch $@

demo: venv ## Deploy, hang, diagnose, repair on three emulated hosts, in minutes (LAB_BASE_PORT=31001)
	@$(BIN)/python tests/lab/demo.py --base-port $(LAB_BASE_PORT)

lab-up: venv ## Start the emulated hosts (LAB_HOSTS=3 LAB_BASE_PORT=31001)
	@$(LAB) up --hosts $(LAB_HOSTS) --base-port $(LAB_BASE_PORT)

lab-down: ## Stop them and remove every trace
	@python=$(BIN)/python; test -x $$python || python=$(PYTHON); $$python tests/lab/lab.py down

scenario: ## Make an emulated host misbehave (HOST=gpu02 SCENARIO=incident)
	@$(LAB) scenario '$(HOST)' '$(SCENARIO)'

lint: dev ## Check style, types, documentation and changelog
	@tests/lint.sh

test: dev ## Run every test that needs no root
	@$(BIN)/python -m pytest $(ARGS)

sanity: dev ## Run ansible-test sanity over the collection
	@tests/sanity.sh

COMPILE := uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url --upgrade --quiet --custom-compile-command 'make lock'

lock: ## Resolve the locked versions anew (needs uv)
	$(COMPILE) pyproject.toml --group lab -o requirements/runtime.txt
	$(COMPILE) pyproject.toml --group dev --extra node -c requirements/runtime.txt -o requirements/dev.txt
	$(COMPILE) --group emulator -c requirements/runtime.txt -o requirements/emulator.txt
