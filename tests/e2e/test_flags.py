# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The engine's own parser judges a new command before the running server is touched.

The tests of this file build on each other, in order.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpufleet.inference.plugins.plugin_utils import engine_flags

ASKED = "Ask its parser"
# Our table knows the flag and no accepted values: only the engine can tell.
BAD = {"kv-canary-real-data": "sometimes"}


@pytest.fixture(scope="module")
def lab(make_lab: Callable[[int], Any]) -> Any:
    lab = make_lab(1)
    lab.deployed = lab.playbook("deploy.yml")
    return lab


def asked(out: str) -> bool:
    """Whether the parser was asked: a skipped task shows so."""
    assert ASKED in out, out
    shown = out.split(ASKED)[1].split("TASK [", maxsplit=1)[0]
    return "skipping:" not in shown


def with_flags(flags: dict[str, Any], **more: Any) -> list[str]:
    return ["-e", json.dumps({"sglang_extra_flags": flags, **more})]


def test_the_first_deploy_asks_and_the_second_does_not(lab: Any) -> None:
    assert lab.deployed.code == 0 and asked(lab.deployed.out), lab.deployed.out
    before = lab.pids()
    done = lab.playbook("deploy.yml")
    assert done.code == 0 and not asked(done.out), done.out
    assert done.recap["gpu01"]["changed"] == 0 and lab.pids() == before


def test_a_value_that_only_the_engine_knows_is_refused_before_anything_stops(lab: Any) -> None:
    words = [word for name, value in BAD.items() for word in (f"--{name}", value)]
    assert engine_flags.check(words, "0.5.23") == [], "our own table is to let it through"
    before, files = lab.pids(), _files(lab)
    done = lab.playbook("deploy.yml", *with_flags(BAD))
    assert done.code == 2, done.out
    line = next(line for line in done.out.splitlines() if "refuses the flags" in line)
    for part in ("gpu01", "--kv-canary-real-data", "'sometimes'", "partial", "nothing was stopped"):
        assert part in line, line
    assert done.recap["gpu01"]["changed"] == 0
    assert lab.pids() == before and _files(lab) == files
    assert not (lab.folder / "gpu01" / "state" / "lease.json").exists()
    assert lab.diagnose()["gpu01"]["verdict"]["state"] == "serving"


def test_an_engine_that_does_not_import_is_refused_too(lab: Any) -> None:
    before = lab.pids()
    (package,) = (lab.folder / "gpu01").glob("**/sglang/srt/server_args.py")
    kept = package.read_text()
    package.write_text("import no_such_library\n")
    try:
        done = lab.playbook("deploy.yml", *with_flags({"stream-interval": 2}))
    finally:
        package.write_text(kept)
    assert done.code == 2 and "No module named 'no_such_library'" in done.out and "sglang_check_flags=false" in done.out, done.out
    assert lab.pids() == before


def test_a_good_change_is_asked_about_and_deployed(lab: Any) -> None:
    before = lab.pids()
    done = lab.playbook("deploy.yml", *with_flags({"stream-interval": 2}))
    assert done.code == 0 and asked(done.out), done.out
    assert lab.pids() != before
    assert "--stream-interval" in lab.state("gpu01", "last_known_good")["command"]


def _files(lab: Any) -> dict[Path, float]:
    """The host's definition and records, with when they were written; the lease comes and goes."""
    host = lab.folder / "gpu01"
    found = [*host.rglob("*.conf"), *host.rglob("*.env"), *(host / "state").glob("*.json")]
    return {path: path.stat().st_mtime for path in found if path.name not in ("visits.json", "lease.json")}
