# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The detokenizer process: token ids in, text out."""

from __future__ import annotations

import time
from multiprocessing.connection import Connection

from sglang.emulator.process import die_with_parent, record_signals, set_title, sleeping_threads
from sglang.emulator.rank import Spec
from sglang.emulator.scenario import Scenario

WORDS = (
    " the",
    " fleet",
    " is",
    " up",
    " and",
    " each",
    " host",
    " has",
    " eight",
    " cards",
    " that",
    " serve",
    " tokens",
    " one",
    " by",
    " one",
)


def run_detokenizer_process(spec: Spec, source: Connection, sink: Connection, ready: Connection) -> None:
    """Target of the detokenizer child: token ids in, text out."""
    scenario = Scenario(spec.machine)
    die_with_parent()
    record_signals(spec.machine, scenario, "sglang::detokenizer")
    time.sleep(scenario.get("spawn_imports_s"))
    set_title("sglang::detokenizer")
    sleeping_threads(scenario.get("threads"))
    ready.send({"status": "ready"})
    try:
        while True:
            batch = source.recv()
            for item in batch:
                item["text"] = "".join(WORDS[token % len(WORDS)] for token in item["tokens"])
            sink.send(batch)
    except (EOFError, OSError):
        return
