# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The console script ``sglang``: serve and version. Children import this module too: keep the top empty."""

import sys


def main() -> None:
    """Run ``sglang serve [MODEL] ...``; a usage error exits 2."""
    command, rest = (sys.argv[1], sys.argv[2:]) if len(sys.argv) > 1 else ("", [])
    if command == "serve":
        from sglang.emulator.launcher import main as serve

        if rest and not rest[0].startswith("-"):
            rest = ["--model-path", *rest]
        serve(rest)
    elif command == "version":
        from sglang import __version__

        print("sglang version: " + __version__)
    else:
        sys.stderr.write("usage: sglang {serve,version} ...\n")
        if command not in ("-h", "--help"):
            sys.stderr.write("sglang: error: argument subcommand: invalid choice: %r (choose from 'serve', 'version')\n" % command)
            sys.exit(2)
