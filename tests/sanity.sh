#!/usr/bin/env bash
# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
#
# ansible-test sanity over the collection, without containers and without an ignore file. Wants .venv/bin first in PATH.
# Modules are also compiled and imported on every other Python that a managed host may have, where one is installed here.
set -euo pipefail
cd "$(dirname "$0")/.."
collection=collections/ansible_collections/gpufleet/inference
controller=$(python -c 'import sys; print("%d.%d" % sys.version_info[:2])')

# ansible-test fetches get-pip from a site of its own; a package index is all that this needs.
cache=~/.ansible/test/cache
mkdir -p "$cache"
for name in get_pip_24_2.py get_pip_25_2.py; do
    [ -e "$cache/$name" ] || cp tests/get_pip.py "$cache/$name"
done

# Ahead of pyenv's shims, which answer for versions that they then refuse to run; behind the controller's own.
pyenv=
for folder in "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.{9,10,11,12,13}.*/bin; do
    [ -d "$folder" ] && pyenv+=$folder:
done
PATH=$(dirname "$(command -v python)"):$pyenv$PATH
others=()
for version in 3.9 3.10 3.11 3.12 3.13; do
    [ "$version" != "$controller" ] && "python$version" -c '' 2>/dev/null && others+=("$version")
done

cd "$collection"
failed=0
ansible-test sanity --color no --python "$controller" "$@" || failed=1
for version in "${others[@]}"; do
    ansible-test sanity --color no --test compile --test import --python "$version" || failed=1
done
[ "$failed" = 0 ] || { echo 'sanity failed'; exit 1; }
echo "sanity passed on Python $controller, compile and import also on: ${others[*]:-no other Python found}"
