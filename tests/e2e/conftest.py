# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A lab of their own for the end-to-end tests, and the three commands as a user types them."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
RECAP = re.compile(r"^(\S+)\s+: ok=(\d+)\s+changed=(\d+)\s+unreachable=(\d+)\s+failed=(\d+)", re.M)


@dataclass
class Run:
    """A finished command."""

    code: int
    out: str

    @property
    def recap(self) -> dict[str, dict[str, int]]:
        """Per host, what Ansible counted."""
        return {host: {"changed": int(changed), "failed": int(failed)} for host, _ok, changed, _un, failed in RECAP.findall(self.out)}

    def lines(self, host: str) -> str:
        """The lines that name a host."""
        return "\n".join(line for line in self.out.splitlines() if host in line)


class Lab:
    """The embedded lab in a folder of its own."""

    def __init__(self, folder: Path, hosts: int) -> None:
        self.folder = folder
        self.names = [f"gpu{n:02d}" for n in range(1, hosts + 1)]
        self.reports = folder / "reports"
        self.env = {
            **os.environ,
            "GPUFLEET_LAB_DIR": str(folder),
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "ANSIBLE_NOCOLOR": "1",
            "ANSIBLE_FORCE_COLOR": "0",
            "ANSIBLE_INJECT_FACT_VARS": "false",
            "LC_ALL": "C.UTF-8",
        }

    def run(self, *words: str | Path, timeout: float = 600) -> Run:
        argv = [str(word) for word in words]
        done = subprocess.run(
            argv,
            cwd=ROOT,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout,
            check=False,
        )
        return Run(done.returncode, done.stdout)

    def tool(self, *words: str) -> Run:
        done = self.run(sys.executable, "tests/lab/lab.py", *words)
        assert done.code == 0, done.out
        return done

    def scenario(self, host: str, name: str, *settings: str) -> None:
        self.tool("scenario", host, name, *settings)

    def playbook(self, name: str, *words: str) -> Run:
        return self.run(*self._playbook(name, *words))

    def start(self, name: str, *words: str) -> subprocess.Popen[bytes]:
        """A playbook in a session of its own, to be killed half-way."""
        argv = self._playbook(name, *words)
        return subprocess.Popen(
            argv,
            cwd=ROOT,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def _playbook(self, name: str, *words: str) -> list[str]:
        return ["ansible-playbook", name, "-i", "inventories/lab", "-e", f"remediation_report_dir={self.reports}", *words]

    def release(self, host: str, owner: str) -> None:
        """Give back the lease of a run that is gone."""
        options = json.dumps({"state_dir": str(self.folder / host / "state"), "owner": owner, "state": "absent"})
        done = self.run("ansible", host, "-i", "inventories/lab", "-m", "gpufleet.inference.host_lease", "-a", options)
        assert done.code == 0, done.out

    def diagnose(self, *words: str, limit: str = "sglang") -> dict[str, dict[str, Any]]:
        """gather_diag, ad hoc: per host what it printed, with the size of it."""
        done = self.run("ansible", limit, "-i", "inventories/lab", "-m", "gpufleet.inference.gather_diag", *words)
        found = {}
        for host, text in re.findall(r"^(\S+) \| SUCCESS => (\{.*?^\})", done.out, re.M | re.S):
            found[host] = {**json.loads(text), "size": len(text)}
        assert found, done.out
        return found

    def pids(self) -> dict[str, list[tuple[int, str]]]:
        """Per host its server's processes: id and start time. A folder of the lab as working directory tells whose they are."""
        found: dict[str, list[tuple[int, str]]] = {name: [] for name in self.names}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                cwd = Path(os.readlink(entry / "cwd"))
                stat = (entry / "stat").read_text()
                title = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            for name in self.names:
                if cwd == self.folder / name / "run" and b"supervisord" not in title and b"sglang" in title:
                    found[name].append((int(entry.name), stat.rpartition(")")[2].split()[19]))
        return {name: sorted(pids) for name, pids in found.items()}

    def state(self, host: str, name: str) -> Any:
        return json.loads((self.folder / host / "state" / f"{name}.json").read_text())

    def report(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads((self.reports / "latest.json").read_text())
        return {**document, "by_host": {row["host"]: row for row in document["rows"]}}


def free_ports(count: int) -> int:
    """The first of so many neighbouring ports that nobody listens on."""
    for base in range(32001, 32700, count):
        with contextlib.ExitStack() as stack:
            try:
                for port in range(base, base + count):
                    stack.enter_context(socket.socket()).bind(("0.0.0.0", port))
            except OSError:
                continue
            return base
    raise AssertionError("no free ports from 32001 to 32700")


@pytest.fixture(scope="session")
def shared() -> Path:
    """Evidence that only this project's own checkouts have beside them."""
    folder = Path(os.environ.get("GPUFLEET_SHARED") or ROOT.parent / "shared")
    if not folder.is_dir():
        pytest.skip(f"{folder} is not here")
    return folder


@pytest.fixture(scope="session")
def make_lab() -> Iterator[Callable[[int], Lab]]:
    labs: list[Lab] = []

    def make(hosts: int) -> Lab:
        lab = Lab(Path(tempfile.mkdtemp(prefix="gpufleet-e2e-")) / "lab", hosts)
        labs.append(lab)
        lab.tool("up", "--hosts", str(hosts), "--base-port", str(free_ports(hosts)))
        return lab

    yield make
    for lab in labs:
        lab.tool("down")
        left = {name: pids for name, pids in lab.pids().items() if pids}
        shutil.rmtree(lab.folder.parent)
        assert not left
