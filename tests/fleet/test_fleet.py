# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Four hosts with systemd and sshd, over ssh as an ordinary user with become: from bare to serving, healed, rebooted, cut off, frozen.

The last host has Python 3.9. The tests build on each other, in order.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

# The incidents of this file come one after the other, but all in the same hour.
HEAL = ("remediate.yml", "-e", "remediation_mode=heal", "-e", "remediation_cooldown=0", "-e", "remediation_breaker_window=1")
# Without what a run of Ansible itself leaves: its own folder, the logs of logins, and the time at which a folder got that folder.
FILES = r"""
find /etc /home /opt /root /srv /usr /var \( -path /srv/fleet -o -path /var/log -o -path '*/.ansible' -o -path /var/lib/systemd \
    -o -path /var/lib/sudo -o -path /var/lib/machine -o -path /opt/emulator \) -prune \
    -o -type d -printf '%p %m\n' -o -printf '%p %y %m %s %T@\n'
ls /var/log /var/lib
"""


@pytest.fixture(scope="module")
def fleet(make_fleet: Callable[[int], Any]) -> Any:
    return make_fleet(4)


def unchanged(fleet: Any, *words: str, code: int = 0) -> Any:
    """Run a playbook that must neither change nor restart anything."""
    before = fleet.pids()
    done = fleet.playbook(*words)
    assert done.code == code, done.out
    assert {counts["changed"] for counts in done.recap.values()} == {0}, done.out
    assert fleet.pids() == before
    return done


def test_the_hosts_are_what_they_should_be(fleet: Any) -> None:
    for host in fleet.names:
        python = "3.9" if host == fleet.names[-1] else "3.11"
        assert fleet.sh(host, "systemctl is-system-running; hostname; python3 -V").splitlines()[:2] == ["running", host]
        assert fleet.sh(host, "python3 -V").startswith(f"Python {python}.")
    boots = {fleet.sh(host, "cat /proc/sys/kernel/random/boot_id") for host in fleet.names}
    assert len(boots) == len(fleet.names)
    address = json.loads((fleet.folder / "fleet.json").read_text())["hosts"]["gpu01"]["address"]
    ssh = ("ssh", "-o", "BatchMode=yes", "-o", f"UserKnownHostsFile={fleet.folder}/known_hosts", "-i", f"{fleet.folder}/id_ed25519")
    assert fleet.run(*ssh, f"ops@{address}", "id -un; sudo -n id -un").out.split() == ["ops", "root"]
    refused = fleet.run(*ssh, f"root@{address}", "true")
    assert refused.code == 255 and "Permission denied (publickey)" in refused.out, refused.out
    refused = fleet.run("ssh", "-o", "BatchMode=yes", "-o", "UserKnownHostsFile=/dev/null", f"ops@{address}", "true")
    assert refused.code == 255 and "Host key verification failed" in refused.out, refused.out


def test_check_mode_on_bare_hosts_writes_nothing(fleet: Any) -> None:
    before = {host: set(fleet.sh(host, FILES).splitlines()) for host in fleet.names}
    done = fleet.playbook("deploy.yml", "--check")
    assert done.code == 0, done.out
    written = {host: sorted(set(fleet.sh(host, FILES).splitlines()) ^ before[host]) for host in fleet.names}
    assert not any(written.values()), written


def test_deploy_from_bare_and_one_host_hangs_as_in_the_incident(fleet: Any) -> None:
    fleet.tool("scenario", "gpu02", "incident")
    done = fleet.playbook("deploy.yml")
    assert done.code == 2, done.out
    assert {host for host, counts in done.recap.items() if counts["failed"]} == {"gpu02"}, done.out
    assert "stuck" in done.lines("gpu02") and "weights_loading 64/64" in done.lines("gpu02"), done.out
    assert fleet.states() == {"gpu01": "serving", "gpu02": "stuck", "gpu03": "serving", "gpu04": "serving"}
    assert all(count >= 1 for count in fleet.reloads().values()), "the new unit was read, and this test can count it"


def test_the_unit_as_systemd_sees_it(fleet: Any) -> None:
    names = ("KillMode", "TimeoutStopUSec", "LimitCORE", "StartLimitBurst", "StartLimitIntervalUSec", "Restart", "UnitFileState", "Type")
    for host in fleet.names:
        found = fleet.properties(host, *names)
        assert found["KillMode"] == "mixed" and found["LimitCORE"] == "0" and found["UnitFileState"] == "enabled", found
        assert found["TimeoutStopUSec"] == "30s", "above the drain bound, which is 15 s in this inventory"
        assert 1 <= int(found["StartLimitBurst"]) <= 10 and found["StartLimitIntervalUSec"] not in ("0", "infinity"), found
        assert fleet.sh(host, "stat -c '%a %U' /opt/gpufleet/sglang.env") == "600 root"
        assert fleet.sh(host, "systemctl is-system-running") == "running"


def test_heal_one_host_and_touch_no_other(fleet: Any) -> None:
    before = fleet.pids()
    done = fleet.playbook(*HEAL)
    assert done.code == 0, done.out
    after = fleet.pids()
    assert {host for host in fleet.names if after[host] != before[host]} == {"gpu02"}
    assert not set(before["gpu02"]) & set(after["gpu02"])
    row = fleet.report()["gpu02"]
    assert (row["state_before"], row["state_after"], row["profile"]) == ("stuck", "serving", "triton_nccl_tuned"), row
    assert fleet.record("gpu02", "fallback")["profile"] == "triton_nccl_tuned"


def test_second_deploy_changes_nothing(fleet: Any) -> None:
    reloads = fleet.reloads()
    done = unchanged(fleet, "deploy.yml")
    assert set(done.recap) >= set(fleet.names)
    assert fleet.reloads() == reloads
    assert "keeps its fallback triton_nccl_tuned" in done.out


def test_check_mode_on_a_deployed_fleet(fleet: Any) -> None:
    unchanged(fleet, "deploy.yml", "--check")


def test_without_become_what_needs_root_is_unavailable(fleet: Any) -> None:
    found = fleet.diagnose("-e", "ansible_become=false", "-a", "return_snapshot=true depth=deep", limit="gpu01,gpu04")
    assert set(found) == {"gpu01", "gpu04"}
    for result in found.values():
        assert result["verdict"]["state"] == "serving", result["verdict"]
        assert {"kernel", "log"} <= set(result["verdict"]["missing"])
        for source in ("kernel", "records"):
            assert result["snapshot"][source]["status"] == "unavailable", source
            assert "ermission denied" in result["snapshot"][source]["reason"], source
    done = fleet.playbook(
        "gather_diag.yml", "--limit", "gpu04", "-e", "ansible_become=false", "-e", f"gather_diag_dir={fleet.reports}/plain"
    )
    assert "Traceback" not in done.out and "MODULE FAILURE" not in done.out, done.out


def test_a_rotated_log_does_not_disturb(fleet: Any) -> None:
    before = fleet.pids()
    for host in ("gpu01", "gpu04"):
        grown = int(fleet.sh(host, "stat -c %s /var/log/gpufleet/sglang.log"))
        assert grown > 0
        fleet.sh(host, "logrotate -f /etc/logrotate.d/gpufleet-sglang")
        assert int(fleet.sh(host, "stat -c %s /var/log/gpufleet/sglang.log.1")) >= grown
        assert int(fleet.sh(host, "stat -c %s /var/log/gpufleet/sglang.log")) < grown
    found = fleet.diagnose(limit="gpu01,gpu04")
    assert {host: result["verdict"]["state"] for host, result in found.items()} == {"gpu01": "serving", "gpu04": "serving"}
    assert fleet.pids() == before
    # What the server writes now goes into the file that is read.
    for host in ("gpu01", "gpu04"):
        assert int(fleet.sh(host, "stat -c %s /var/log/gpufleet/sglang.log")) > 0


def test_hosts_that_reboot_come_back_as_they_were(fleet: Any) -> None:
    before = fleet.pids()
    boots = {host: fleet.sh(host, "cat /proc/sys/kernel/random/boot_id; systemctl show -p UserspaceTimestamp") for host in fleet.names}
    rebooted = ("gpu01", "gpu02", "gpu04")  # as deployed, on its fallback, with Python 3.9
    for host in rebooted:
        fleet.sh(host, "touch /run/before-the-boot")
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda host: fleet.tool("reboot", host), rebooted))
    fleet.wait_for("serving", *rebooted)
    after = fleet.pids()
    assert after["gpu03"] == before["gpu03"]
    for host in rebooted:
        assert fleet.sh(host, "cat /proc/sys/kernel/random/boot_id; systemctl show -p UserspaceTimestamp") != boots[host]
        assert fleet.sh(host, "ls /run/before-the-boot 2>&1 || true").endswith("No such file or directory")
        assert not set(before[host]) & set(after[host])
        assert "]: Stopping " in fleet.sh(host, "journalctl -b -1 -u sglang --no-pager"), "it was an orderly shutdown"
    commands = {host: fleet.sh(host, "tr '\\0' ' ' </proc/$(systemctl show --value -p MainPID sglang)/cmdline") for host in rebooted}
    assert "--attention-backend triton" in commands["gpu02"]
    assert "--attention-backend flashinfer" in commands["gpu01"] and "--attention-backend flashinfer" in commands["gpu04"]
    unchanged(fleet, "deploy.yml", "--limit", "gpu02,gpu04")


def test_stopped_by_a_person_and_crashed(fleet: Any) -> None:
    before = fleet.pids()
    fleet.sh("gpu03", "systemctl stop sglang")
    fleet.sh("gpu04", "systemctl kill -s KILL --kill-who=main sglang")
    deadline = time.monotonic() + 30
    while fleet.properties("gpu04", "ActiveState")["ActiveState"] != "failed":
        assert time.monotonic() < deadline
        time.sleep(0.5)
    assert fleet.states() == {"gpu01": "serving", "gpu02": "serving", "gpu03": "stopped", "gpu04": "crashed"}
    done = fleet.playbook(*HEAL)
    after = fleet.pids()
    assert (after["gpu01"], after["gpu02"]) == (before["gpu01"], before["gpu02"])
    assert after["gpu03"] == [], "who stopped it decides about its start"
    rows = fleet.report()
    assert (rows["gpu04"]["state_before"], rows["gpu04"]["action"], rows["gpu04"]["state_after"]) == ("crashed", "restart", "serving"), (
        done.out
    )
    assert rows["gpu03"]["state_after"] == "stopped"
    assert fleet.sh("gpu04", "systemctl is-system-running") == "running", "systemd has forgotten the failure"
    fleet.sh("gpu03", "systemctl start sglang")
    fleet.wait_for("serving", "gpu03")


def test_the_evidence_of_each_end_is_kept(fleet: Any) -> None:
    ends = {host: fleet.sh(host, "cat /var/lib/gpufleet/exits/*.exit") for host in ("gpu03", "gpu04")}
    assert "status=KILL" in ends["gpu04"] and "asked=no" in ends["gpu04"], ends["gpu04"]
    assert "asked=yes" in ends["gpu03"], ends["gpu03"]
    for text in ends.values():
        assert "Load weight" in text or "fired up" in text, "the end of the log is in it"


def test_a_cut_link(fleet: Any) -> None:
    before = fleet.pids()
    fleet.tool("cut", "gpu03")
    fleet.sh("gpu01", "systemctl kill -s KILL --kill-who=main sglang")
    done = fleet.playbook(*HEAL, timeout=240)
    rows = fleet.report()
    assert done.recap["gpu03"]["unreachable"] >= 1 or "unreachable" in done.lines("gpu03").lower(), done.out
    assert rows["gpu03"]["state_before"] == "unreachable", rows["gpu03"]
    assert (rows["gpu01"]["state_before"], rows["gpu01"]["state_after"]) == ("crashed", "serving"), done.out
    assert done.code != 0, "a host that nobody can look at needs a person"
    fleet.tool("mend", "gpu03")
    assert fleet.states() == dict.fromkeys(fleet.names, "serving")
    after = fleet.pids()
    assert {host for host in fleet.names if after[host] != before[host]} == {"gpu01"}


def test_a_frozen_host_does_not_hold_the_others_up(fleet: Any) -> None:
    before = fleet.pids()
    fleet.tool("freeze", "gpu04")
    fleet.tool("exec", "gpu04", "--", "true", code=1)
    began = time.monotonic()
    found = fleet.diagnose()
    assert time.monotonic() - began < 120
    assert {host: result["verdict"]["state"] for host, result in found.items()} == dict.fromkeys(("gpu01", "gpu02", "gpu03"), "serving")
    done = fleet.playbook(*HEAL, timeout=240)
    assert done.seconds < 180
    assert fleet.report()["gpu04"]["state_before"] == "unreachable", done.out
    fleet.tool("thaw", "gpu04")
    fleet.wait_for("serving", *fleet.names, timeout=60)
    assert fleet.pids() == before
