# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run scenarios on a target, two servers at a time on the real engine; also a command for a person.

run.py TARGET [SCENARIO ...] --out DIR     TARGET: real | emulator
run.py compare REAL_DIR EMULATOR_DIR
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[3] / "collections")]

from conformance import compare, install
from conformance.scenarios import SCENARIOS, World
from conformance.target import Target

# Of the real engine's: those with two servers count twice.
LANES = {"real": 2, "emulator": 10}
WIDE = ("port_of_another_engine", "nodes")
ALONE = ("slow_imports",)
REAL_ONLY = ("slow_imports",)
# Longest first.
ORDER = (
    "endpoints", "stopped_processes", "two_ranks", "port_of_a_stranger", "watchdog", "kill_detokenizer", "nodes", "absent_node",
    "port_of_another_engine", "term_while_asked", "term_with_hanging_generation", "drain", "arguments", "no_config",
    "missing_shard", "truncated_shard", "two_ranks_as_a_module", "kill_main", "kill_in_start", "term_in_start", "slow_imports",
)  # fmt: skip


def scenarios(target: str) -> list[str]:
    """Names of the scenarios that a target can show."""
    assert set(ORDER) == set(SCENARIOS)
    return [name for name in ORDER if target == "real" or name not in REAL_ONLY]


class Runs:
    """Scenarios running on one target, and their results."""

    def __init__(self, target: Target, folder: Path, base_port: int, names: list[str] | None = None, judged: bool = True) -> None:
        self.target, self.folder, self._lanes, self._judged = target, folder, LANES[target.name], judged
        folder.mkdir(parents=True, exist_ok=True)
        if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
            # A background job's children would ignore it too, and end otherwise.
            signal.signal(signal.SIGINT, signal.default_int_handler)
        self._free, self._condition = self._lanes, threading.Condition()
        self._results: dict[str, Future[dict[str, Any]]] = {}
        wanted = [name for name in scenarios(target.name) if names is None or name in names]
        self._turn = 0
        self._worlds: list[World] = []
        self._closing = False
        self._pool = ThreadPoolExecutor(max(1, len(wanted)))
        for number, name in enumerate(wanted):
            ports = [base_port + number * 4 + offset for offset in range(4)]
            self._results[name] = self._pool.submit(self._one, name, ports, number)

    def result(self, name: str) -> dict[str, Any]:
        """{seen, verdicts, seconds} of a scenario, when it is through."""
        return self._results[name].result()

    def close(self) -> None:
        """End what still runs, and start nothing more."""
        with self._condition:
            self._closing = True
            self._condition.notify_all()
        for world in self._worlds:
            world.close()
        self._pool.shutdown()

    def names(self) -> list[str]:
        """The scenarios that run here."""
        return list(self._results)

    def _one(self, name: str, ports: list[int], number: int) -> dict[str, Any]:
        weight = self._lanes if name in ALONE else min(2 if name in WIDE else 1, self._lanes)
        with self._condition:
            # In order: a wide one is not overtaken for ever.
            self._condition.wait_for(lambda: self._closing or (self._turn == number and self._free >= weight))
            if self._closing:
                raise RuntimeError("the run was ended")
            self._turn += 1
            self._free -= weight
            self._condition.notify_all()
        held = [weight]

        def release() -> None:
            with self._condition:
                self._free += held.pop() if held else 0
                self._condition.notify_all()

        work = self.folder / "work" / name
        shutil.rmtree(work, ignore_errors=True)
        world = World(name, self.target, work, ports, self._judged, release)
        self._worlds.append(world)
        began = time.monotonic()
        try:
            SCENARIOS[name](world)
        finally:
            world.close()
            release()
        outcome = {"seen": world.seen, "verdicts": world.verdicts, "seconds": round(time.monotonic() - began, 1)}
        (self.folder / f"{name}.json").write_text(json.dumps(outcome, indent=1, sort_keys=True) + "\n")
        return outcome


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("what", choices=["real", "emulator", "compare", "record"])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--out", type=Path, default=Path("/tmp/conformance"))
    parser.add_argument("--not-judged", action="store_true", help="do not ask gather_diag")
    parser.add_argument("--port", type=int, default=31601)
    arguments = parser.parse_args()
    if arguments.what == "compare":
        return compare.main(*map(Path, arguments.names))
    if arguments.what == "record":
        return compare.record(Path(arguments.names[0]), [name for name in ORDER if name not in REAL_ONLY])
    folder = arguments.out / arguments.what
    target = install.real() if arguments.what == "real" else install.emulator(arguments.out / "emulator-install")
    runs = Runs(target, folder, arguments.port, arguments.names or None, not arguments.not_judged)
    bad = 0
    for name in runs.names():
        try:
            outcome = runs.result(name)
        except Exception as error:
            print(f"{name}: {type(error).__name__}: {error}")
            bad += 1
            continue
        print(f"{name}: {outcome['seconds']} s")
        for row in outcome["verdicts"]:
            bad += not row["right"]
            mark = "  " if row["right"] else "!!"
            print(f"  {mark} {row['moment']}: {row['found']['state']}/{row['found']['action']} {row['summary']}  (wanted {row['wanted']})")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
