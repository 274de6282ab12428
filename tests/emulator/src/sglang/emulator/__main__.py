# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Commands: make-model, make-machine, set-scenario."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from sglang.emulator import machine, model_dir, scenario


def main() -> None:
    """Run one command; bad input prints one line and exits 2."""
    parser = argparse.ArgumentParser(prog="python -m sglang.emulator")
    commands = parser.add_subparsers(dest="command", required=True)
    model = commands.add_parser("make-model", help="write a small, valid model directory")
    model.add_argument("directory", type=Path)
    model.add_argument("--shards", type=int, default=64)
    model.add_argument("--shard-mib", type=int, default=1)
    box = commands.add_parser("make-machine", help="write a machine directory: GPUs and a healthy scenario")
    box.add_argument("directory", type=Path)
    box.add_argument("--gpu-model", default=machine.DEFAULT_MODEL, choices=list(machine.MODELS))
    box.add_argument("--gpus", type=int, default=8)
    fault = commands.add_parser("set-scenario", help="change the scenario of a machine, also while servers run on it")
    fault.add_argument("directory", type=Path)
    fault.add_argument("name")
    fault.add_argument("settings", nargs="*", metavar="key=value")
    options = parser.parse_args()
    if options.command == "make-model":
        model_dir.make_model(options.directory, options.shards, options.shard_mib)
    elif options.command == "make-machine":
        machine.make(options.directory, options.gpu_model, options.gpus)
    else:
        pairs = [item.partition("=") for item in options.settings]
        try:
            scenario.write(options.directory, options.name, {key: value for key, _, value in pairs})
        except ValueError as error:
            sys.stderr.write("%s: error: %s\n" % (parser.prog, error))
            sys.exit(2)


if __name__ == "__main__":
    main()
