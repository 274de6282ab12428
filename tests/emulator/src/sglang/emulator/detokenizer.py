# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The detokenizer process: token ids in, text out."""

from __future__ import annotations

import threading
import time
from multiprocessing.connection import Connection

from sglang.emulator.log import Log
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


def run_detokenizer_process(spec: Spec, source: Connection, sink: Connection) -> None:
    """Target of the detokenizer child: token ids in, text out."""
    scenario = Scenario(spec.machine)
    record_signals(spec.machine, scenario, "sglang::detokenizer")
    # it imports less than the schedulers
    time.sleep(scenario.get("spawn_imports_s") * 0.9)
    die_with_parent()
    set_title("sglang::detokenizer")
    sleeping_threads(scenario.get("threads"))
    if spec.args["soft_watchdog_timeout"]:
        Log("", spec.args["log_level"]).info("Watchdog DetokenizerManager initialized.")
    try:
        while True:
            batch = source.recv()
            for item in batch:
                item["text"] = "".join(WORDS[token % len(WORDS)] for token in item["tokens"])
            sink.send(batch)
    except (EOFError, OSError):
        # the real sockets do not tell that the other side is gone
        threading.Event().wait()
