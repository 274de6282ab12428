# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The lab comes up once, refuses what can not work, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PORT = 31701

Lab = Callable[..., subprocess.CompletedProcess[str]]


def processes_in(folder: Path) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                cwd = os.readlink(entry / "cwd")
            except OSError:
                continue
            if (cwd + "/").startswith(f"{folder}/"):
                found.append(int(entry.name))
    return found


def short_socket_dir(folder: Path) -> Path:
    (line,) = [line for line in (folder / "gpu01/supervisord.conf").read_text().splitlines() if line.startswith("file=")]
    return Path(line.partition("=")[2]).parent


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Long enough that the sockets do not fit in."""
    return tmp_path / "a-folder-whose-path-is-too-long-for-a-socket-a-folder-whose-path-is-too-long-for-a-socket"


@pytest.fixture
def lab(folder: Path) -> Iterator[Lab]:
    def call(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, str(ROOT / "tests/lab/lab.py"), *words],
            env={**os.environ, "GPUFLEET_LAB_DIR": str(folder)},
            check=False,
            capture_output=True,
            text=True,
            timeout=120,
        )

    yield call
    done = call("down")
    assert done.returncode == 0, done.stderr


def up(lab: Lab, hosts: int = 2) -> subprocess.CompletedProcess[str]:
    return lab("up", "--hosts", str(hosts), "--base-port", str(PORT))


def test_up_twice_then_down_leaves_nothing(lab: Lab, folder: Path) -> None:
    first = up(lab)
    assert first.returncode == 0, first.stderr
    assert "started now: gpu01, gpu02" in first.stdout
    running = processes_in(folder)
    sockets = short_socket_dir(folder)
    assert len(list(sockets.iterdir())) == 2

    second = up(lab)
    assert "started now: none" in second.stdout
    assert processes_in(folder) == running

    other_size = up(lab, hosts=3)
    assert other_size.returncode
    assert "a lab with 2 hosts" in other_size.stderr

    # A killed supervisord leaves its server behind, here a process that ignores TERM.
    os.kill(int((folder / "gpu01/run/supervisord.pid").read_text()), signal.SIGKILL)
    orphan = subprocess.Popen(
        ["/bin/sh", "-c", "trap '' TERM; while :; do sleep 1; done"], cwd=folder / "gpu01" / "run", start_new_session=True
    )
    third = up(lab)
    assert "started now: gpu01." in third.stdout, third.stderr
    assert orphan.wait(timeout=1) == -signal.SIGKILL

    done = lab("down")
    assert done.returncode == 0, done.stderr
    assert not processes_in(folder)
    assert not folder.exists()
    assert not sockets.exists()
    assert "there was no lab" in lab("down").stdout


def test_half_started_lab_goes_down(lab: Lab, folder: Path) -> None:
    assert up(lab).returncode == 0
    sockets = short_socket_dir(folder)
    (folder / "lab.json").unlink()
    os.kill(int((folder / "gpu02/run/supervisord.pid").read_text()), signal.SIGKILL)
    assert lab("down").returncode == 0
    assert not processes_in(folder)
    assert not folder.exists()
    assert not sockets.exists()


def test_taken_port_is_named(lab: Lab, folder: Path) -> None:
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", PORT + 1))
        holder.listen()
        refused = up(lab)
    assert refused.returncode
    assert f"port {PORT + 1}, wanted for gpu02, is taken" in refused.stderr
    assert not folder.exists()


def test_scenario_needs_a_lab_and_a_host_of_it(lab: Lab, folder: Path) -> None:
    assert "make lab-up" in lab("scenario", "gpu01", "incident").stderr
    assert up(lab).returncode == 0
    assert "no host 'gpu09'" in lab("scenario", "gpu09", "incident").stderr
    assert lab("scenario", "gpu02", "incident").returncode == 0
    assert json.loads((folder / "gpu02/machine/scenario.json").read_text())["scenario"] == "incident"
    assert json.loads((folder / "gpu01/machine/scenario.json").read_text())["scenario"] == "healthy"


def test_inventory_is_plain_values_and_survives_an_export(folder: Path, lab: Lab, tmp_path: Path) -> None:
    assert up(lab).returncode == 0
    inventory = Path(sys.executable).parent / "ansible-inventory"
    environment = {**os.environ, "GPUFLEET_LAB_DIR": str(folder)}

    def read(source: Path) -> dict[str, dict[str, object]]:
        command = [str(inventory), "-i", str(source), "--list", "--export"]
        done = subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True, text=True)
        exported: dict[str, dict[str, object]] = json.loads(done.stdout)
        return exported

    exported = read(ROOT / "inventories" / "lab")
    assert "{{" not in json.dumps(exported)
    assert exported["sglang"]["hosts"] == ["gpu01", "gpu02"]
    assert exported.get("all", {}).get("vars") is None, "AWX makes these variables of its whole inventory"
    again = tmp_path / "served"
    again.write_text(f"#!{sys.executable}\nprint({json.dumps(exported)!r})\n")
    again.chmod(0o700)
    assert read(again) == exported
