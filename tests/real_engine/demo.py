# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""make demo-real: the whole loop on two hosts with the real SGLang. Every expected result is checked; the first that is missing ends it."""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "lab"))

import lab
import processes
from demonstration import Demonstration, recap

INVENTORY = "inventories/lab_real"
SICK = "gpu02"
RANK = "sglang::scheduler_TP1"
HOSTS = ("gpu01", "gpu02")


def stop_a_rank(demo: Demonstration) -> int:
    """Freeze one of the two ranks of the sick host, as a debugger or a broken driver would; returns its process id."""
    found = [p for p in processes.under(demo.lab.folder / SICK) if Path(f"/proc/{p.pid}/cmdline").read_bytes().startswith(RANK.encode())]
    demo.expect(len(found) == 1, f"{SICK} has a process {RANK}")
    processes.send(found[0], signal.SIGSTOP)
    return found[0].pid


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--base-port", default="31501")
    ports = parser.parse_args().base_port
    demo = Demonstration(lab.RealLab(), INVENTORY, HOSTS)

    demo.heading("The engine is installed, unless it was before; two hosts come up")
    demo.tool("up", "--engine", "real", "--hosts", str(len(HOSTS)), "--base-port", ports)

    demo.heading("Deploy")
    code, output = demo.command("ansible-playbook", "deploy.yml", "-i", INVENTORY)
    demo.expect(code == 0 and set(recap(output)) == set(HOSTS), "deploy ends well")

    demo.heading("Ask every host")
    demo.expect(demo.states(demo.diagnose()) == dict.fromkeys(HOSTS, "serving"), "every host serves")
    before = demo.server_pids()

    demo.heading("A rank of gpu02 stops")
    print(f"$ kill -STOP {stop_a_rank(demo)}   # {RANK}", flush=True)
    found = demo.diagnose()
    demo.expect(demo.states(found) == {h: "stuck" if h == SICK else "serving" for h in HOSTS}, f"{SICK} is stuck, the other one serves")
    demo.expect(found[SICK]["cause"] == "process_stopped", "because a process was stopped")

    demo.heading("Repair")
    code, _ = demo.command("ansible-playbook", "remediate.yml", "-i", INVENTORY, "-e", "remediation_mode=heal")
    demo.expect(code == 0, "remediate ends well")

    demo.heading("Ask again")
    demo.expect(demo.states(demo.diagnose()) == dict.fromkeys(HOSTS, "serving"), "every host serves")
    after = demo.server_pids()
    demo.expect([h for h in HOSTS if before[h] != after[h]] == [SICK], f"no server but {SICK}'s was restarted")

    demo.result()


if __name__ == "__main__":
    main()
