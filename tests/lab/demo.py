# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""make demo: the whole loop on three emulated hosts. Every expected result is checked; the first that is missing ends it."""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import lab

BIN = Path(sys.executable).parent
INVENTORY = "inventories/lab"
SICK = "gpu02"
HOSTS = ("gpu01", "gpu02", "gpu03")
REPORTS = lab.LAB.parent / "reports"
STARTED = time.monotonic()


def heading(text: str) -> None:
    print(f"\n\033[1m=== {text}\033[0m  ({time.monotonic() - STARTED:.0f} s)", flush=True)


def fail(message: str) -> NoReturn:
    sys.exit(f"\ndemo: NOT AS EXPECTED: {message}\nThe lab is still up for a look; make lab-down removes it.")


def expect(condition: object, message: str) -> None:
    if not condition:
        fail(message)
    print(f"demo: ok: {message}", flush=True)


def command(*words: str) -> tuple[int, str]:
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


def tool(*words: str) -> None:
    if subprocess.run([sys.executable, str(lab.ROOT / "tests/lab/lab.py"), *words], check=False).returncode:
        sys.exit(1)


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


def diagnose() -> dict[str, dict[str, Any]]:
    code, output = command("ansible", "sglang", "-i", INVENTORY, "-m", "gpufleet.inference.gather_diag")
    expect(code == 0, "gather_diag ran on every host")
    return verdicts(output)


def server_pids() -> dict[str, str]:
    found = {}
    for host in HOSTS:
        words = [str(BIN / "supervisorctl"), "-c", str(lab.LAB / host / "supervisord.conf"), "pid", "sglang"]
        found[host] = subprocess.run(words, check=False, capture_output=True, text=True).stdout.strip()
    return found


def record(host: str, name: str) -> dict[str, Any]:
    """One of the records that the host keeps about itself."""
    try:
        content: dict[str, Any] = json.loads((lab.LAB / host / "state" / f"{name}.json").read_text())
    except FileNotFoundError:
        fail(f"{host} has no record {name}")
    return content


def states(found: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    return {host: found.get(host, {}).get("state") for host in HOSTS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--base-port", default="31001")
    ports = parser.parse_args().base_port
    if lab.read_settings():
        sys.exit("demo: a lab is up already: run make lab-down first")

    heading(f"Three hosts come up; {SICK} will hang as in the incident")
    tool("up", "--hosts", str(len(HOSTS)), "--base-port", ports)
    tool("scenario", SICK, "incident")

    heading("Deploy the profile flashinfer")
    code, output = command("ansible-playbook", "deploy.yml", "-i", INVENTORY)
    failed = {host: numbers["failed"] > 0 for host, numbers in recap(output).items()}
    expect(code != 0 and failed == {host: host == SICK for host in HOSTS}, f"deploy fails for {SICK} and for no other host (exit {code})")
    before = server_pids()

    heading("What is wrong? Ask every host")
    found = diagnose()
    expect(states(found) == {h: "stuck" if h == SICK else "serving" for h in HOSTS}, f"{SICK} is stuck, the others serve")
    verdict = found[SICK]
    expect(verdict["phase"] == "weights_loading", "stuck in weights_loading")
    expect(
        verdict["cause"] == "sm120_unsupported_backend" and verdict["confidence"] in ("low", "medium"),
        "the attention backend is a hypothesis, not a certainty",
    )
    expect(verdict["missing"], f"it says what would make it surer: {', '.join(map(str, verdict['missing']))}")

    heading("Repair")
    code, _ = command("ansible-playbook", "remediate.yml", "-i", INVENTORY, "-e", "remediation_mode=heal")
    expect(code == 0, "remediate ends well")

    heading("Ask again")
    found = diagnose()
    expect(states(found) == dict.fromkeys(HOSTS, "serving"), "every host serves")
    after = server_pids()
    expect([h for h in HOSTS if before[h] != after[h]] == [SICK], f"no server but {SICK}'s was restarted")
    fallback = record(SICK, "fallback")
    expect(fallback["profile"] == "triton_nccl_tuned", f"{SICK} runs triton_nccl_tuned")
    expect(fallback["confirmed_cause"] == "sm120_unsupported_backend", "the cure is recorded as confirming the cause")

    heading("Result")
    report = json.loads((REPORTS / "latest.json").read_text())
    columns = ("host", "state_before", "cause", "action", "state_after", "seconds")
    table = [columns, *(tuple(str(row.get(c) if row.get(c) is not None else "-") for c in columns) for row in report["rows"])]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    print(f"\nReport: {REPORTS / 'latest.html'}")
    print(f"The demo took {time.monotonic() - STARTED:.0f} s. The hosts are still up: look around, then make lab-down.")


if __name__ == "__main__":
    main()
