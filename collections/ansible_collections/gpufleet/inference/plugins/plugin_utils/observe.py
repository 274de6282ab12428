# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""From the options of a task to a judged snapshot: what the actions gather_diag and wait_ready share.

Role defaults do not exist in an ad-hoc run. So an option comes from the task, else from the variable of the host
that configures the role; what is still open the module reads from the manifest on the host.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ansible_collections.gpufleet.inference.plugins.plugin_utils import diagnose, history, policy, signatures

MODULE = "gpufleet.inference.gather_diag"

#: option of the module -> variable of the host
VARIABLES = {
    "state_dir": "gpufleet_state_dir",
    "service_manager": "sglang_service_manager",
    "service_name": "sglang_service_name",
    "supervisor_conf": "sglang_supervisor_conf",
    "port": "sglang_port",
    "bind": "sglang_host",
    "log_path": "sglang_log_path",
    "model_path": "sglang_model_path",
    "work_dir": "sglang_work_dir",
    "kernel_log_path": "gpufleet_kernel_log_path",
    "nvidia_smi": "gpufleet_nvidia_smi",
    "gpus_expected": "host_check_gpus",
}
#: option of the actions alone -> variable of the host
CONTROLLER_VARIABLES = {"policy": "gpufleet_policy", "signatures_extra": "gpufleet_signatures_extra"}

#: The sources that must have been readable before anything destructive is permitted, and what counts as that.
#: That a crashed server has no process, or a container no kernel log, is an answer too.
GATES = {"processes": ("ok", "absent"), "kernel": ("ok", "absent"), "gpus": ("ok",)}


#: The records that the plan works with.
RECORDS = ("manifest", "last_known_good", "fallback", "attempts", "marks", "lease")


class Judge:
    """Signatures and policy, loaded once, and the function over them."""

    def __init__(self, policy_overrides: Mapping[str, Any] | None, signatures_extra: Iterable[str] | None) -> None:
        self.policy: dict[str, Any] = policy.load(dict(policy_overrides or {}))
        self.catalog = signatures.load(list(signatures_extra or []))

    def patterns(self) -> dict[str, list[dict[str, str]]]:
        """The line patterns that the node looks for, in the form of the module's option."""
        return {source: list(self.catalog.patterns.get(source, [])) for source in ("log", "kernel")}

    def verdict(self, snapshot: Mapping[str, Any], host: str) -> dict[str, Any]:
        """The verdict on one snapshot, with the name of the host put into the commands for a person."""
        verdict = diagnose.diagnose(dict(snapshot), self.catalog, self.policy)
        verdict["next"] = [re.sub(r"\bHOST\b", lambda _match: host, step) for step in verdict["next"]]
        return verdict


def resolve(arguments: Mapping[str, Any], variable: Callable[[str], Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Each option of O(names) that the task or, through C(variable(name)), the host gives; None counts as not given."""
    found = {}
    for option, name in names.items():
        value = arguments.get(option)
        if value is None:
            value = variable(name)
        if value is not None:
            found[option] = value
    return found


def facts(snapshot: Mapping[str, Any]) -> dict[str, Any]:
    """The few facts about the host that a reader of the verdict wants beside it."""
    service, target, gpus = (_part(snapshot, name) for name in ("service", "target", "gpus"))
    main = _part(snapshot, "processes").get("main") or {}
    devices = gpus.get("devices") or [{}]
    return {
        "service": service.get("state"),
        "main_pid": service.get("main_pid") or main.get("pid"),
        "engine_version": target.get("engine_version"),
        "profile": target.get("profile"),
        "port": target.get("port"),
        "gpus": gpus.get("count"),
        "gpu_model": devices[0].get("name"),
        "silent_s": _part(snapshot, "log").get("silent_s"),
    }


def gates(snapshot: Mapping[str, Any]) -> dict[str, bool]:
    """Which of the sources that a destructive action needs were readable. A host without GPUs has no tool for them."""
    without = ("absent",) if _part(snapshot, "target").get("gpus_expected") == 0 else ()
    more = {"gpus": without}
    return {source: _part(snapshot, source).get("status") in (*good, *more.get(source, ())) for source, good in GATES.items()}


def active(records: Mapping[str, Any], now: float) -> dict[str, Any]:
    """What people and earlier repairs left on the host and still binds at O(now) (epoch seconds).

    :returns: C(fallback) (record or None) and C(marks) (list).
    """
    fallback = records.get("fallback")
    broken = history.unreadable({"marks": records.get("marks")})
    marks = [{"kind": "unreadable", "reason": broken[0]}] if broken else _part(records, "marks").get("marks") or []
    return {
        "fallback": fallback if isinstance(fallback, Mapping) and "profile" in fallback and _binds(fallback, now) else None,
        "marks": [mark for mark in marks if isinstance(mark, Mapping) and _binds(mark, now)],
    }


def result(module_result: Mapping[str, Any], judge: Judge, host: str, with_records: bool, with_snapshot: bool) -> dict[str, Any]:
    """The result of the action gather_diag, from that of the module."""
    snapshot = module_result["snapshot"]
    verdict = judge.verdict(snapshot, host)
    answer: dict[str, Any] = {"changed": False, "summary": verdict["summary"], "verdict": verdict, "facts": facts(snapshot)}
    if module_result.get("bundle"):
        answer["bundle"] = module_result["bundle"]
    if with_records:
        records = _part(snapshot, "records")
        visits = _part(records, "visits").get("visits") or []
        answer.update(
            records={**{name: records.get(name) for name in RECORDS}, "visits": {"visits": visits[-1:]}},
            active=active(records, float(snapshot.get("collected_at") or time.time())),
            target=snapshot.get("target"),
            gates=gates(snapshot),
            at=snapshot.get("collected_at"),
        )
    if with_snapshot:
        answer["snapshot"] = snapshot
    return answer


def progress_line(verdict: Mapping[str, Any]) -> str:
    """State of a start in a few words: C(weights_loading 41/64, 2.1 GiB/s)."""
    phase, state = verdict.get("phase"), verdict.get("state")
    words = str(phase) if state in ("starting", "serving") and phase else f"{state} in {phase}" if phase else str(state)
    progress = verdict.get("progress") or {}
    if progress.get("total"):
        words += f" {progress.get('done') or 0:g}/{progress['total']:g}"
    rate = progress.get("bytes_per_s") or 0
    if rate >= 2**20 and state == "starting":
        words += f", {rate / 2**30:.1f} GiB/s" if rate >= 2**30 / 10 else f", {rate / 2**20:.0f} MiB/s"
    return words


def step(verdict: Mapping[str, Any]) -> tuple[Any, ...]:
    """What has to differ between two looks to be worth a line on the screen."""
    progress = verdict.get("progress") or {}
    return verdict.get("state"), verdict.get("phase"), progress.get("done")


def _part(record: Mapping[str, Any], name: str) -> dict[str, Any]:
    part = record.get(name)
    return dict(part) if isinstance(part, Mapping) else {}


def _binds(entry: Mapping[str, Any], now: float) -> bool:
    expires = entry.get("expires")
    return not isinstance(expires, (int, float)) or expires > now
