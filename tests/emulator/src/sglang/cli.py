# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The console script ``sglang``: serve and version. Children import this module too: keep the top empty."""

import sys


def main() -> None:
    """Run ``sglang serve [MODEL] ...``. A usage error exits 2, a missing model 1."""
    command, rest = (sys.argv[1], sys.argv[2:]) if len(sys.argv) > 1 else ("", [])
    if command == "serve":
        from sglang.emulator.launcher import main as serve

        if rest and not rest[0].startswith("-"):
            rest = ["--model-path", *rest]
        if not any(word in ("-h", "--help", "--config") or word.split("=")[0] in ("--model-path", "--model") for word in rest):
            sys.stderr.write(
                "Traceback (most recent call last):\nException: Error: --model-path is required. Please provide the path to the model.\n"
            )
            sys.exit(1)
        serve(rest)
    elif command == "version":
        from sglang import __version__

        print("sglang version: %s\ngit revision: N/A" % __version__)
    else:
        sys.stderr.write("usage: sglang [-h] {serve,generate,version} ...\n")
        if command in ("-h", "--help"):
            return
        what = "argument subcommand: invalid choice: %r (choose from 'serve', 'generate', 'version')" % command
        sys.stderr.write("sglang: error: %s\n" % (what if command else "the following arguments are required: subcommand"))
        sys.exit(2)
