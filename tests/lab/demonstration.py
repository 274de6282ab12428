# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the demos share: commands shown as they run, and expectations of which the first that is missing ends it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import lab

BIN = Path(sys.executable).parent


def recap(output: str) -> dict[str, dict[str, int]]:
    """The numbers of PLAY RECAP by host."""
    found = {}
    for host, numbers in re.findall(r"^(\S+)\s+: (ok=.*)$", output, re.MULTILINE):
        found[host] = {key: int(value) for key, value in re.findall(r"(\w+)=(\d+)", numbers)}
    return found


def verdicts(output: str) -> dict[str, dict[str, Any]]:
    """What an ad-hoc gather_diag printed, by host."""
    found = {}
    for start in re.finditer(r"^(\S+) \| \w+!? => (?=\{)", output, re.MULTILINE):
        result, _ = json.JSONDecoder().raw_decode(output, start.end())
        found[start[1]] = result.get("verdict", {})
    return found


@dataclass(frozen=True)
class Demonstration:
    """One demo: a lab, its inventory and its hosts."""

    lab: lab.EmulatorLab | lab.RealLab
    inventory: str
    hosts: tuple[str, ...]
    started: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        if self.lab.read_settings():
            sys.exit(f"demo: a lab is up already: run make {self.lab.make}-down first")

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started

    @property
    def reports(self) -> Path:
        return self.lab.folder.parent / "reports"

    def heading(self, text: str) -> None:
        print(f"\n\033[1m=== {text}\033[0m  ({self.seconds:.0f} s)", flush=True)

    def fail(self, message: str) -> NoReturn:
        sys.exit(f"\ndemo: NOT AS EXPECTED: {message}\nThe lab is still up for a look; make {self.lab.make}-down removes it.")

    def expect(self, condition: object, message: str) -> None:
        if not condition:
            self.fail(message)
        print(f"demo: ok: {message}", flush=True)

    def command(self, *words: str) -> tuple[int, str]:
        """Run one of the commands a person would type, shown as it runs; returns its exit code and output."""
        print(f"$ {' '.join(words)}", flush=True)
        environment = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "PYTHONUNBUFFERED": "1"}
        lines = []
        with subprocess.Popen(
            [str(BIN / words[0]), *words[1:]],
            cwd=lab.ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as child:
            assert child.stdout
            for line in child.stdout:
                print(line, end="", flush=True)
                lines.append(re.sub(r"\x1b\[[0-9;]*m", "", line))
        return child.returncode, "".join(lines)

    def tool(self, *words: str) -> None:
        if subprocess.run([sys.executable, str(lab.ROOT / "tests/lab/lab.py"), *words], check=False).returncode:
            sys.exit(1)

    def diagnose(self) -> dict[str, dict[str, Any]]:
        code, output = self.command("ansible", "sglang", "-i", self.inventory, "-m", "gpufleet.inference.gather_diag")
        self.expect(code == 0, "gather_diag ran on every host")
        return verdicts(output)

    def states(self, found: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        return {host: found.get(host, {}).get("state") for host in self.hosts}

    def server_pids(self) -> dict[str, str]:
        found = {}
        for host in self.hosts:
            words = [str(BIN / "supervisorctl"), "-c", str(self.lab.folder / host / "supervisord.conf"), "pid", "sglang"]
            found[host] = subprocess.run(words, check=False, capture_output=True, text=True).stdout.strip()
        return found

    def record(self, host: str, name: str) -> dict[str, Any]:
        """One of the records that the host keeps about itself."""
        try:
            content: dict[str, Any] = json.loads((self.lab.folder / host / "state" / f"{name}.json").read_text())
        except FileNotFoundError:
            self.fail(f"{host} has no record {name}")
        return content

    def result(self) -> None:
        """The table at the end."""
        self.heading("Result")
        report = json.loads((self.reports / "latest.json").read_text())
        columns = ("host", "state_before", "cause", "action", "state_after", "seconds")
        table = [columns, *(tuple(str(row.get(c) if row.get(c) is not None else "-") for c in columns) for row in report["rows"])]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        for row in table:
            print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
        print(f"\nReport: {self.reports / 'latest.html'}")
        print(f"The demo took {self.seconds:.0f} s. The hosts are still up: look around, then make {self.lab.make}-down.")
