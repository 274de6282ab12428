# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The unchanged check of flags finds the emulator's parser where it finds the engine's."""

from __future__ import annotations

import sys
from pathlib import Path

from ansible_collections.gpufleet.inference.plugins.module_utils import _engine_parser

SOURCE = Path(__file__).parents[1] / "emulator" / "src"
GOOD = ["--model-path", "/m", "--tp-size", "8", "--max-total-tokens", "100k", "--kv-canary-real-data", "partial"]


def check(tmp_path: Path, *more: str) -> dict[str, object]:
    result = _engine_parser.check(sys.executable, [*GOOD, *more], {"PYTHONPATH": str(SOURCE)}, 60, str(tmp_path))
    assert (result["status"], result["version"]) == ("ok", "0.5.23") and not list(tmp_path.iterdir())
    return result


def test_a_command_that_it_takes(tmp_path: Path) -> None:
    assert check(tmp_path, "--mem-fraction", "0.85")["abbreviations"] == ["--mem-fraction is read as --mem-fraction-static"]


def test_a_command_that_it_refuses(tmp_path: Path) -> None:
    result = check(tmp_path, "--kv-canary-real-data", "sometimes", "--reasoning-parser", "kimi_k9", "--tp-sise", "8")
    assert result["accepted"] is False
    assert [line.split(" (")[0] for line in result["problems"]] == [  # type: ignore[attr-defined]
        "argument --kv-canary-real-data: invalid choice: 'sometimes'",
        "argument --reasoning-parser: invalid choice: 'kimi_k9'",
        "unrecognized arguments: --tp-sise",
    ]
