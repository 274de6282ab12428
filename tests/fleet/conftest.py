# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A fleet of its own for the tests on real hosts, and the three commands as a user types them."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
RECAP = re.compile(r"^(\S+)\s+: (ok=\d.*)$", re.M)
STATE_DIR = "/var/lib/gpufleet"

# Every process in the unit's control group with its start time: what restarts has another one.
PIDS = r"""
for pid in $(cat /sys/fs/cgroup/system.slice/sglang.service/cgroup.procs 2>/dev/null); do
    stat=$(cat /proc/$pid/stat 2>/dev/null) && echo "$pid $(echo "${stat##*) }" | cut -d ' ' -f 20)"
done
true
"""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """These tests want root or docker, and minutes."""
    if os.environ.get("GPUFLEET_TEST_FLEET") != "1":
        for item in items:
            if Path(__file__).parent in item.path.parents and "make_fleet" in getattr(item, "fixturenames", ()):
                item.add_marker(pytest.mark.skip(reason="needs hosts with systemd and sshd: make test-fleet"))


@dataclass
class Run:
    """A finished command."""

    code: int
    out: str
    seconds: float

    @property
    def recap(self) -> dict[str, dict[str, int]]:
        """Per host, what Ansible counted."""
        return {host: {key: int(n) for key, n in re.findall(r"(\w+)=(\d+)", counts)} for host, counts in RECAP.findall(self.out)}

    def lines(self, host: str) -> str:
        """The lines that name a host."""
        return "\n".join(line for line in self.out.splitlines() if host in line)


class Fleet:
    """Hosts of a fleet in a folder of its own."""

    def __init__(self, folder: Path, hosts: int) -> None:
        self.folder = folder
        self.names = [f"gpu{n:02d}" for n in range(1, hosts + 1)]
        self.reports = folder.parent / "reports"
        self.env = {
            **os.environ,
            "GPUFLEET_FLEET_DIR": str(folder),
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "ANSIBLE_NOCOLOR": "1",
            "ANSIBLE_FORCE_COLOR": "0",
            "ANSIBLE_INJECT_FACT_VARS": "false",
            "LC_ALL": "C.UTF-8",
        }

    def run(self, *words: str | Path, timeout: float = 600, **options: Any) -> Run:
        began = time.monotonic()
        options = {"stdin": subprocess.DEVNULL, "stderr": subprocess.STDOUT, **options}
        done = subprocess.run(
            [str(word) for word in words],
            cwd=ROOT,
            env=self.env,
            stdout=subprocess.PIPE,
            text=True,
            timeout=timeout,
            check=False,
            **options,
        )
        return Run(done.returncode, done.stdout, time.monotonic() - began)

    def tool(self, *words: str, code: int = 0, **options: Any) -> str:
        """A command of fleet.py."""
        done = self.run(sys.executable, "tests/fleet/fleet.py", *words, **options)
        assert done.code == code, done.out
        return done.out

    def sh(self, host: str, script: str) -> str:
        """A script on the host, as root and not by ssh."""
        return self.tool("exec", host, "--", "sh", "-c", script).strip()

    def playbook(self, name: str, *words: str | Path, timeout: float = 600) -> Run:
        extra = ("-e", f"remediation_report_dir={self.reports}")
        return self.run("ansible-playbook", name, "-i", "inventories/fleet", *extra, *words, timeout=timeout)

    def diagnose(self, *words: str, limit: str = "sglang") -> dict[str, dict[str, Any]]:
        """gather_diag, ad hoc: per host what it printed."""
        done = self.run("ansible", limit, "-i", "inventories/fleet", "-m", "gpufleet.inference.gather_diag", *words)
        found = {host: json.loads(text) for host, text in re.findall(r"^(\S+) \| SUCCESS => (\{.*?^\})", done.out, re.M | re.S)}
        assert found, done.out
        return found

    def states(self, *words: str, limit: str = "sglang") -> dict[str, str]:
        return {host: result["verdict"]["state"] for host, result in self.diagnose(*words, limit=limit).items()}

    def wait_for(self, state: str, *hosts: str, timeout: float = 90) -> None:
        """Until the diagnosis calls all of them that."""
        deadline = time.monotonic() + timeout
        while (found := self.states(limit=",".join(hosts))) != dict.fromkeys(hosts, state):
            assert time.monotonic() < deadline, found
            time.sleep(1)

    def pids(self) -> dict[str, list[str]]:
        """Per host, id and start time of its server's processes."""
        return {host: sorted(self.sh(host, PIDS).splitlines()) for host in self.names}

    def properties(self, host: str, *names: str) -> dict[str, str]:
        """The unit as systemd sees it."""
        out = self.sh(host, "systemctl show sglang.service " + " ".join(f"-p {name}" for name in names))
        return dict(line.split("=", 1) for line in out.splitlines())

    def reloads(self) -> dict[str, int]:
        """Per host, how often its systemd was reloaded since it booted."""
        return {
            host: int(self.sh(host, "journalctl -b _PID=1 --no-pager -q | grep -c 'systemd\\[1\\]: Reloading' || true"))
            for host in self.names
        }

    def record(self, host: str, name: str) -> Any:
        return json.loads(self.sh(host, f"cat {STATE_DIR}/{name}.json"))

    def report(self) -> dict[str, dict[str, Any]]:
        """The rows of the last remediation's report, by host."""
        return {row["host"]: row for row in json.loads((self.reports / "latest.json").read_text())["rows"]}


@pytest.fixture(scope="session")
def make_fleet() -> Iterator[Callable[[int], Fleet]]:
    fleets: list[Fleet] = []

    def make(hosts: int) -> Fleet:
        fleet = Fleet(Path(tempfile.mkdtemp(prefix="gpufleet-fleet-")) / "fleet", hosts)
        fleets.append(fleet)
        fleet.tool("up", "--hosts", str(hosts), timeout=1800)
        return fleet

    yield make
    for fleet in fleets:
        fleet.tool("down")
        left = sorted(fleet.folder.parent.glob("fleet*"))
        shutil.rmtree(fleet.folder.parent)
        assert not left
