# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What gather_diag says of a server: its module in a process of its own, then the judge that its action plugin uses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from ansible_collections.gpufleet.inference.plugins.plugin_utils import observe

from conformance.target import Server

COLLECTIONS = Path(__file__).resolve().parents[3] / "collections"
MODULE = "ansible_collections.gpufleet.inference.plugins.modules.gather_diag"


def options(server: Server, **more: Any) -> dict[str, Any]:
    """What a host's variables say of a server that was started by hand on a host without GPUs."""
    # The kernel's log is shared by everything on this machine.
    quiet = server.cwd / "kernel.log"
    quiet.touch()
    given = {
        "service_manager": "existing",
        "port": server.port,
        "work_dir": str(server.cwd),
        "log_path": str(server.log_path),
        "kernel_log_path": str(quiet),
        "state_dir": str(server.cwd / "state"),
        "nvidia_smi": "/nonexistent/nvidia-smi",
        "gpus_expected": 0,
        **more,
    }
    return {name: value for name, value in given.items() if value is not None}


def deployed(server: Server) -> None:
    """Write down that we deployed this server, as the role does."""
    state = server.cwd / "state"
    state.mkdir(exist_ok=True)
    manifest = {"command": server.command, "port": server.port, "work_dir": str(server.cwd), "log_path": str(server.log_path)}
    (state / "manifest.json").write_text(json.dumps(manifest))


def verdict(server: Server, **more: Any) -> dict[str, Any]:
    """The verdict on a server now, and what it was made from under ``snapshot``."""
    judge = observe.Judge(None, None)
    arguments = {"ANSIBLE_MODULE_ARGS": {**options(server, **more), "patterns": judge.patterns()}}
    environment = {**os.environ, "PYTHONPATH": str(COLLECTIONS)}
    done = subprocess.run(
        [sys.executable, "-m", MODULE],
        input=json.dumps(arguments),
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"gather_diag: {done.stdout[:2000]} {done.stderr[-2000:]}")
    answer = observe.result(json.loads(done.stdout), judge, "host", with_records=False, with_snapshot=True)
    return {**answer["verdict"], "snapshot": answer["snapshot"]}
