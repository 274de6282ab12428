# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help venv dev demo lab-up lab-down scenario demo-real real-up real-down real-clean fleet-up fleet-down fleet fleet-clean lint test test-fleet molecule test-real sanity lock

# The first interpreter that is new enough; make venv PYTHON=/path/to/python3 decides otherwise.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python3.14; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
VENV ?= .venv
BIN := $(VENV)/bin
LAB_HOSTS ?= 3
LAB_BASE_PORT ?= 31001
REAL_HOSTS ?= 2
REAL_BASE_PORT ?= 31501
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
LAB := $(BIN)/python tests/lab/lab.py
FLEET := $(BIN)/python tests/fleet/fleet.py
N ?= 4
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

demo-real: venv ## The same on two hosts with the real SGLang, which runs on this CPU (REAL_BASE_PORT=31501)
	@$(BIN)/python tests/real_engine/demo.py --base-port $(REAL_BASE_PORT)

real-up: venv ## Start hosts for the real SGLang; installs it once, 3 GB (REAL_HOSTS=2 TORCH_INDEX_URL=)
	@$(LAB) up --engine real --hosts $(REAL_HOSTS) --base-port $(REAL_BASE_PORT)

real-down: ## Stop them and remove every trace
	@python=$(BIN)/python; test -x $$python || python=$(PYTHON); $$python tests/lab/lab.py down --engine real

real-clean: real-down ## Remove the installed SGLang as well, for all clones
	@python=$(BIN)/python; test -x $$python || python=$(PYTHON); $$python tests/real_engine/engine.py clean

fleet-up: venv ## Start hosts with systemd and sshd, as root or with docker (N=4 FLEET_ENGINE= FLEET_SUBNET=)
	@$(FLEET) up --hosts $(N) $(if $(FLEET_SUBNET),--subnet $(FLEET_SUBNET))

fleet-down: ## Remove them and every trace
	@python=$(BIN)/python; test -x $$python || python=$(PYTHON); $$python tests/fleet/fleet.py down

fleet: ## Cut a link, freeze, stop, reboot one of them (DO='reboot gpu02'; DO=--help)
	@$(FLEET) $(DO)

fleet-clean: ## Remove the cached trees that they boot from
	@$(FLEET) clean

lint: dev ## Check style, types, documentation and changelog
	@tests/lint.sh

test: dev ## Run every test that needs no root
	@$(BIN)/python -m pytest $(ARGS)

test-fleet: dev ## Run the tests on four hosts with systemd and sshd, as root or with docker
	@GPUFLEET_TEST_FLEET=1 $(BIN)/python -m pytest tests/fleet $(ARGS)

molecule: dev ## Run the molecule scenario on four such hosts: converge, idempotence, incident, verify
	@molecule test

test-real: dev ## Hold the emulator and our verdicts to the real engine on this CPU, in twenty minutes; sets it up once
	@$(BIN)/python tests/real_engine/engine.py setup
	@GPUFLEET_TEST_REAL=1 $(BIN)/python -m pytest tests/real_engine $(ARGS)

sanity: dev ## Run ansible-test sanity over the collection
	@tests/sanity.sh

COMPILE := uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url --upgrade --quiet --custom-compile-command 'make lock'

lock: ## Resolve the locked versions anew (needs uv)
	$(COMPILE) pyproject.toml --group lab -o requirements/runtime.txt
	$(COMPILE) pyproject.toml --group dev --extra node -c requirements/runtime.txt -o requirements/dev.txt
	$(COMPILE) --group emulator -c requirements/runtime.txt -o requirements/emulator.txt
	$(subst --universal --python-version 3.11,--python-version 3.9 --python-platform linux --only-binary :all:,$(COMPILE)) --group emulator -o requirements/emulator_py39.txt
	$(COMPILE) requirements/real_engine.in --excludes requirements/real_engine_without.in -o requirements/real_engine.txt
