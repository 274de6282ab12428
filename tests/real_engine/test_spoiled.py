# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A suite that can not fail proves nothing: an emulator that was spoiled in one place is found out."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from conformance import compare, install
from conformance.run import Runs

PORTS = 31801
# What is changed in the emulator's source (pattern, replacement), the scenario that sees it, and a word of the paths where it shows.
SPOILINGS: dict[str, tuple[dict[str, str], str, str]] = {
    "a title": ({r"sglang::scheduler": "sglang::worker"}, "endpoints", "trees"),
    "a status while it warms up": ({r'"/health", "/health_generate"\)': '"/health_generate",)'}, "endpoints", "warm-up"),
    "a key of an answer": ({r'"max_model_len"': '"max_length"'}, "endpoints", "/v1/models"),
    "the end of a stream": ({r"\[DONE\]": "[STOP]"}, "endpoints", "streamed"),
    "the order of two lines": (
        {r"Memory pool end\.": "KV Cache ends.", r"KV Cache is allocated\.": "Memory pool end."},
        "endpoints",
        "milestones",
    ),
    "the exit status of a usage error": ({r"sys\.exit\(2\)": "sys.exit(64)"}, "arguments", "exit"),
    "the exit status after SIGINT": ({r"os\._exit\(0\)": "os._exit(7)"}, "endpoints", "interrupted"),
}


@pytest.mark.parametrize("spoiling", SPOILINGS)
def test_a_spoiled_emulator_is_found_out(spoiling: str, tmp_path: Path, recorded: dict[str, Any]) -> None:
    changes, scenario, where = SPOILINGS[spoiling]
    copy = tmp_path / "emulator"
    shutil.copytree(install.EMULATOR, copy, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info", "build"))
    for pattern, replacement in changes.items():
        changed = 0
        for file in (copy / "src").rglob("*.py"):
            text, count = re.subn(pattern, replacement, file.read_text())
            changed += count
            file.write_text(text)
        assert changed, f"nothing in the emulator matches {pattern} any more: choose another spoiling"
    runs = Runs(install.emulator(tmp_path / "install", copy), tmp_path / "seen", PORTS, [scenario], judged=False)
    found = compare.differences(recorded[scenario], runs.result(scenario)["seen"], scenario)
    rest, _unused = compare.sift(found, compare.accepted())
    assert any(where in path for path, _real, _spoiled in rest), compare.text(rest)
