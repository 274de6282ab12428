# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""make demo: the whole loop on three emulated hosts. Every expected result is checked; the first that is missing ends it."""

from __future__ import annotations

import argparse

import lab
from demonstration import Demonstration, recap

INVENTORY = "inventories/lab"
SICK = "gpu02"
HOSTS = ("gpu01", "gpu02", "gpu03")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--base-port", default="31001")
    ports = parser.parse_args().base_port
    demo = Demonstration(lab.EmulatorLab(), INVENTORY, HOSTS)

    demo.heading(f"Three hosts come up; {SICK} will hang as in the incident")
    demo.tool("up", "--hosts", str(len(HOSTS)), "--base-port", ports)
    demo.tool("scenario", SICK, "incident")

    demo.heading("Deploy the profile flashinfer")
    code, output = demo.command("ansible-playbook", "deploy.yml", "-i", demo.inventory)
    failed = {host: numbers["failed"] > 0 for host, numbers in recap(output).items()}
    as_meant = code != 0 and failed == {host: host == SICK for host in HOSTS}
    demo.expect(as_meant, f"deploy fails for {SICK} and for no other host (exit {code})")
    before = demo.server_pids()

    demo.heading("What is wrong? Ask every host")
    found = demo.diagnose()
    demo.expect(demo.states(found) == {h: "stuck" if h == SICK else "serving" for h in HOSTS}, f"{SICK} is stuck, the others serve")
    verdict = found[SICK]
    demo.expect(verdict["phase"] == "weights_loading", "stuck in weights_loading")
    demo.expect(
        verdict["cause"] == "sm120_unsupported_backend" and verdict["confidence"] in ("low", "medium"),
        "the attention backend is a hypothesis, not a certainty",
    )
    demo.expect(verdict["missing"], f"it says what would make it surer: {', '.join(map(str, verdict['missing']))}")

    demo.heading("Repair")
    code, _ = demo.command("ansible-playbook", "remediate.yml", "-i", demo.inventory, "-e", "remediation_mode=heal")
    demo.expect(code == 0, "remediate ends well")

    demo.heading("Ask again")
    found = demo.diagnose()
    demo.expect(demo.states(found) == dict.fromkeys(HOSTS, "serving"), "every host serves")
    after = demo.server_pids()
    demo.expect([h for h in HOSTS if before[h] != after[h]] == [SICK], f"no server but {SICK}'s was restarted")
    fallback = demo.record(SICK, "fallback")
    demo.expect(fallback["profile"] == "triton_nccl_tuned", f"{SICK} runs triton_nccl_tuned")
    demo.expect(fallback["confirmed_cause"] == "sm120_unsupported_backend", "the cure is recorded as confirming the cause")

    demo.result()


if __name__ == "__main__":
    main()
