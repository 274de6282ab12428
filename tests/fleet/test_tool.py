# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""fleet.py itself: what it refuses before it changes anything, two at once, and a fleet whose processes were killed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

TOOL = Path(__file__).with_name("fleet.py")


def refused(folder: Path, *words: str, **environment: str) -> str:
    """What it says when it refuses; nothing may be left of it."""
    environment = {**os.environ, "GPUFLEET_FLEET_DIR": str(folder), **environment}
    done = subprocess.run([sys.executable, str(TOOL), *words], env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1 and done.stderr.startswith("fleet: ") and "Traceback" not in done.stderr, done.stderr
    assert not folder.exists()
    return done.stderr


@pytest.mark.parametrize(
    ("words", "environment", "told"),
    [
        (["up"], {"FLEET_ENGINE": "lxc"}, "podman and docker"),
        (["up"], {"PATH": "/nonexistent"}, "ssh and ssh-keygen not installed"),
        (["up", "--subnet", "nonsense"], {}, "--subnet"),
        (["up", "--subnet", "10.1.1.0/28"], {}, "smaller than a /24"),
        (["reboot", "gpu01"], {}, "no fleet"),
        (["exec", "gpu01", "--", "true"], {}, "no fleet"),
        (["status"], {}, "no fleet"),
    ],
)
def test_refused(words: list[str], environment: dict[str, str], told: str, tmp_path: Path) -> None:
    assert told in refused(tmp_path / "fleet", *words, **environment)


def test_a_folder_whose_name_can_not_be_used(tmp_path: Path) -> None:
    assert "move the clone" in refused(tmp_path / "a fleet", "up")


def test_no_engine_at_all(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    for name in ("ssh", "ssh-keygen"):
        (tmp_path / "bin" / name).symlink_to("/bin/true")
    told = refused(tmp_path / "fleet", "up", PATH=str(tmp_path / "bin"))
    assert "podman is not installed" in told and "docker is not installed" in told


@pytest.fixture(scope="module")
def fleet(make_fleet: Callable[[int], Any]) -> Any:
    return make_fleet(1)


def test_two_at_once_on_a_fleet_that_is_up(fleet: Any) -> None:
    address = fleet.sh("gpu01", "cat /proc/sys/kernel/random/boot_id")
    with ThreadPoolExecutor() as pool:
        told = list(pool.map(lambda _: fleet.tool("up", "--hosts", "1"), range(2)))
    assert all("started now: none" in text for text in told), told
    assert fleet.sh("gpu01", "cat /proc/sys/kernel/random/boot_id") == address
    assert "run make fleet-down first" in fleet.tool("up", "--hosts", "2", code=1)
    assert "no host 'gpu07'" in fleet.tool("stop", "gpu07", code=1)


def test_a_fleet_whose_processes_were_killed_is_made_anew(fleet: Any) -> None:
    if json.loads((fleet.folder / "fleet.json").read_text())["engine"] != "podman":
        pytest.skip("docker's daemon looks after its own processes")
    source = "import containers, pathlib, sys; print(*containers.Engine('podman', pathlib.Path(sys.argv[1])).processes())"
    path = f"{TOOL.parent}:{TOOL.parents[1] / 'lab'}"
    asked = [sys.executable, "-c", source, str(fleet.folder)]
    found = subprocess.run(asked, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=True).stdout.split()
    assert len(found) > 5
    for pid in found:
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)
    assert "fleet-down" in fleet.tool("status", code=1)
    assert "started now: gpu01" in fleet.tool("up", "--hosts", "1")
    assert fleet.sh("gpu01", "systemctl is-system-running") == "running"
