# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What systemd 252 said about a unit of the role in each of these situations, and what it kept of the ends."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from ansible_collections.gpufleet.inference.plugins.module_utils import _exits, _proc, _systemd

SCRIPT = Path(__file__).parents[4] / "roles" / "sglang" / "files" / "record_exit.sh"
RUN = "81872ad4e608456bb0365c8a67443f0b"
SEEN = {
    "running": "active running Result=success MainPID=433 ExecMainCode=0 ExecMainStatus=0",
    "starting": "activating start-pre Result=success MainPID=0 ExecMainCode=0 ExecMainStatus=0 Job=7",
    "killed": "failed failed Result=signal MainPID=0 ExecMainCode=2 ExecMainStatus=9",
    "config": "failed failed Result=exit-code MainPID=0 ExecMainCode=1 ExecMainStatus=1",
    "core": "failed failed Result=core-dump MainPID=0 ExecMainCode=3 ExecMainStatus=11",
    "between": "activating auto-restart Result=signal MainPID=0 ExecMainCode=2 ExecMainStatus=9 NRestarts=1",
    "between stopped": "inactive dead Result=signal MainPID=0 ExecMainCode=2 ExecMainStatus=9",
    "refused": "failed failed Result=start-limit-hit MainPID=0 ExecMainCode=2 ExecMainStatus=15",
    "draining": "deactivating stop-sigterm Result=success MainPID=5535 ExecMainCode=0 ExecMainStatus=0 Job=347",
    "ending": "deactivating stop-post Result=signal MainPID=0 ControlPID=977 ExecMainCode=2 ExecMainStatus=9",
    "ending asked": "deactivating stop-post Result=success MainPID=0 ControlPID=977 ExecMainCode=1 ExecMainStatus=0 Job=347",
    "timeout": "failed failed Result=timeout MainPID=0 ExecMainCode=2 ExecMainStatus=9",
    "down": "inactive dead Result=success MainPID=0 ExecMainCode=1 ExecMainStatus=0",
    "queued": "inactive dead Result=success MainPID=0 ExecMainCode=0 ExecMainStatus=0 Job=12",
}


def unit(name, end=None, run=RUN, load="loaded", enabled="enabled", entered=1000000):
    active, sub, *rest = SEEN[name].split()
    lines = [f"LoadState={load}", f"UnitFileState={enabled}", f"ActiveState={active}", f"SubState={sub}", f"InvocationID={run}", *rest]
    lines += [f"ActiveEnterTimestampMonotonic={entered}", f"InactiveEnterTimestampMonotonic={entered}", "ControlGroup="]
    times = ["ExecMainStartTimestampMonotonic=1000000", "ExecMainExitTimestampMonotonic=2000000"]
    return _systemd.parse_unit("\n".join(lines + times), end)


def end(asked, run=RUN, **changes):
    row = {"at": 1796009290, "exit_code": None, "exit_signal": 9, "asked": asked, "invocation": run, "this_boot": True}
    return {**row, **changes}


@pytest.mark.parametrize(
    ("name", "kept", "state", "desired"),
    [
        ("running", None, "running", "running"),
        ("running", end(True, "an older run"), "running", "running"),
        ("starting", None, "starting", "running"),
        ("killed", None, "failed", "running"),
        ("killed", end(False), "failed", "running"),
        ("killed", end(True), "stopped", "stopped"),
        ("killed", end(True, "an older run"), "failed", "running"),
        ("config", end(False), "failed", "running"),
        ("between", end(False), "failed", "running"),
        ("between stopped", end(False), "stopped", "stopped"),
        ("refused", end(True), "failed", "running"),
        ("draining", None, "running", "stopped"),
        ("ending", None, "failed", "running"),
        ("ending asked", None, "running", "stopped"),
        ("timeout", end(True), "stopped", "stopped"),
        ("down", None, "stopped", "stopped"),
        ("down", end(True), "stopped", "stopped"),
        ("down", end(False), "stopped", "running"),
        ("queued", None, "starting", "running"),
    ],
)
def test_state_and_whether_it_is_wanted(name, kept, state, desired):
    seen = unit(name, kept)
    assert (seen["state"], seen["desired"]) == (state, desired)


@pytest.mark.parametrize(
    ("enabled", "kept", "desired"),
    [
        ("enabled", None, "running"),
        ("disabled", None, "stopped"),
        ("enabled", end(True, this_boot=False), "running"),
        # systemd drops a unit that nothing refers to any more, with the run's id and all times.
        ("enabled", end(True), "stopped"),
        ("disabled", end(False), "running"),
        ("disabled", end(False, this_boot=False), "stopped"),
    ],
)
def test_a_unit_without_a_run_since_the_boot(enabled, kept, desired):
    seen = unit("down", kept, run="", enabled=enabled, entered=0)
    assert (seen["state"], seen["desired"]) == ("stopped", desired)


def test_exit_code_and_signal():
    assert [(unit(name)["exit_code"], unit(name)["exit_signal"]) for name in ("config", "killed", "core", "down", "running")] == [
        (1, None),
        (None, 9),
        (None, 11),
        (0, None),
        (None, None),
    ]
    assert unit("between")["restarts"] == 1 and unit("ending")["control_pid"] == 977 and unit("refused")["unit_state"] == "failed/failed"


def test_an_end_that_systemd_forgot_comes_from_the_record():
    seen = unit("queued", end(False), run="")
    assert seen["exit_signal"] is None  # it starts
    forgotten = _systemd.parse_unit("LoadState=loaded\nActiveState=inactive\nSubState=dead\nExecMainCode=0\nMainPID=0\n", end(False))
    assert (forgotten["exit_signal"], forgotten["since"], forgotten["desired"]) == (9, 1796009290, "running")


@pytest.mark.parametrize(("load", "expected"), [("not-found", {"state": "absent"}), ("masked", {"state": "absent", "desired": "stopped"})])
def test_no_unit(load, expected):
    assert unit("down", load=load) == expected
    assert unit("running", load=load)["state"] == "running"


def test_unit_names():
    assert [_systemd.unit_name(name) for name in ("sglang", "sglang-0.5", "sglang@1.service")] == [
        "sglang.service",
        "sglang-0.5.service",
        "sglang@1.service",
    ]


def record(state_dir, log, **values):
    shown = {"SERVICE_RESULT": "signal", "EXIT_CODE": "killed", "EXIT_STATUS": "KILL", "INVOCATION_ID": RUN, **values}
    done = subprocess.run(["sh", SCRIPT, state_dir, "sglang.service", log], env=shown, capture_output=True, timeout=30, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_the_script_keeps_an_end(tmp_path):
    log = tmp_path / "a log"
    log.write_bytes(
        b"x" * 200000
        + b"\nserver_args={'api_key': 'topsecret1', 'admin_api_key': None}\nsglang serve --api-key topsecret2 --port 1\n\xff last line\n"
    )
    record(tmp_path / "state", log)
    found = _exits.newest(str(tmp_path / "state"), "sglang.service")
    assert found is not None and _exits.newest(str(tmp_path / "state"), "other.service") is None
    text = _exits.content(found["path"])
    assert (found["result"], found["exit_code"], found["exit_signal"], found["invocation"]) == ("signal", None, 9, RUN)
    assert found["boot_id"] == _proc.boot_id() and found["this_boot"] and found["asked"] in (None, False)
    assert "topsecret" not in text and "'admin_api_key': None" in text and text.endswith(" last line\n")
    assert os.stat(found["path"]).st_mode & 0o777 == 0o600 and os.stat(tmp_path / "state/exits").st_mode & 0o777 == 0o700
    assert 65536 < os.stat(found["path"]).st_size < 120000


def test_the_script_keeps_ten_and_survives_what_is_missing(tmp_path):
    (tmp_path / "exits").mkdir()
    for second in range(12):
        (tmp_path / "exits" / f"17960000{second:02d}-1.exit").write_text(f"at=17960000{second:02d}\nunit=sglang.service\n")
    (tmp_path / "exits" / ".1-1.new").write_text("of a run that was cut off")
    record(tmp_path, tmp_path / "no log", EXIT_CODE="exited", EXIT_STATUS="3", SERVICE_RESULT="exit-code")
    kept = sorted(os.listdir(tmp_path / "exits"))
    assert len(kept) == 10 and kept[0] == "1796000003-1.exit"
    assert _exits.newest(str(tmp_path), "sglang.service")["exit_code"] == 3


def test_the_script_writes_nothing_on_a_full_disk(tmp_path):
    short = tmp_path / "record_exit.sh"
    short.write_text(SCRIPT.read_text().replace("free_kib=65536", "free_kib=99999999999999"))
    subprocess.run(["sh", short, tmp_path, "sglang.service", "/dev/null"], timeout=30, check=True)
    assert os.listdir(tmp_path / "exits") == []


def test_the_script_is_plain_posix():
    shells = [shell for shell in ("dash", "bash", "busybox") if shutil.which(shell)]
    for shell in shells:
        subprocess.run([*([shell, "sh"] if shell == "busybox" else [shell]), "-n", SCRIPT], check=True)
    assert shells


def test_a_stop_that_comes_later_is_noted_and_the_end_stays(tmp_path):
    record(tmp_path, tmp_path / "no log")
    assert _exits.newest(str(tmp_path), "sglang.service")["asked"] is not True
    _exits.note_asked(str(tmp_path), "sglang.service", RUN)
    found = _exits.newest(str(tmp_path), "sglang.service")
    assert (found["asked"], found["exit_signal"], found["result"], len(os.listdir(tmp_path / "exits"))) == (True, 9, "signal", 1)
    _exits.note_asked(str(tmp_path), "sglang.service", "a run whose end nobody kept")
    found = _exits.newest(str(tmp_path), "sglang.service")
    assert (found["asked"], found["exit_signal"], found["invocation"]) == (True, None, "a run whose end nobody kept")


def test_garbage_among_the_records_is_passed_over(tmp_path):
    record(tmp_path, tmp_path / "no log")
    os.mkfifo(tmp_path / "exits" / "9999999998-1.exit")
    (tmp_path / "exits" / "9999999999-1.exit").write_bytes(b"\xff\xfe=\n\n\n")
    (tmp_path / "exits" / "junk.exit").mkdir()
    assert _exits.newest(str(tmp_path), "sglang.service")["exit_signal"] == 9
    assert _exits.newest(str(tmp_path / "nothing"), "sglang.service") is None
