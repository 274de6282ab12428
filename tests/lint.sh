#!/usr/bin/env bash
# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
#
# Every linter, from the repository's root with .venv/bin first in PATH (make lint does both). Shows all failures, not only the first.
set -uo pipefail
cd "$(dirname "$0")/.."
collection=collections/ansible_collections/gpufleet/inference
failed=()

check() {
    local name=$1
    shift
    echo "--- $name"
    "$@" || failed+=("$name")
}

in_collection() { (cd "$collection" && "$@"); }

# The collection must not know what it is tested with.
no_test_words() { ! grep -rnwiE 'emulator|lab' "$collection/plugins" "$collection/roles" --include='*' --exclude-dir=__pycache__; }

headers() {
    local missing
    missing=$(git ls-files -co --exclude-standard -- '*.py' '*.yml' '*.yaml' '*.sh' '*.toml' '*.j2' Makefile ansible.cfg .ci/run |
        xargs grep -L 'SPDX-License-Identifier: GPL-3.0-or-later')
    [ -z "$missing" ] || { printf 'no SPDX header: %s\n' $missing; return 1; }
}

check ruff ruff check .
check 'ruff format' ruff format --check .
check mypy env MYPYPATH=collections mypy "$collection/plugins/module_utils" "$collection/plugins/plugin_utils"
check 'mypy lab' mypy tests/lab/lab.py tests/lab/demo.py
check 'mypy real engine' env MYPYPATH=collections:tests/lab mypy tests/real_engine/engine.py tests/real_engine/demo.py
check 'mypy fleet' env MYPYPATH=collections:tests/lab:tests/fleet mypy tests/fleet/fleet.py
check yamllint yamllint --strict .
# Its syntax check has no inventory, which our ansible.cfg makes an error.
check ansible-lint env ANSIBLE_INVENTORY_UNPARSED_FAILED=False ansible-lint --nocolor
check antsibull-docs in_collection antsibull-docs lint-collection-docs --plugin-docs --validate-collection-refs=self .
check antsibull-changelog in_collection antsibull-changelog lint
check headers headers
check 'test words' no_test_words

if [ ${#failed[@]} -gt 0 ]; then
    printf 'lint failed: %s\n' "${failed[*]}"
    exit 1
fi
echo 'lint passed'
