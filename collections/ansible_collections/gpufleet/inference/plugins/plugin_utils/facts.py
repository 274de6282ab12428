# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The view: flat, typed facts of a snapshot, the same for live snapshots and for bundles.

Rules and the `when` of signatures see only this. What is not known is None; nothing here raises on any garbage.
"""

from __future__ import annotations

import datetime
import re
import shlex
from collections.abc import Mapping
from typing import Any

from ansible_collections.gpufleet.inference.plugins.plugin_utils import lines, phases, policy, progress, signatures, xid
from ansible_collections.gpufleet.inference.plugins.plugin_utils.values import (
    first,
    flag,
    items,
    mapping,
    moment,
    number,
    numbers,
    text,
    word,
)

TAIL_LINES = 12
PROBES = {"generate": ("ok", "timeout", "error", "refused", "garbage"), "health": ("ok", "unavailable", "timeout", "refused", "error")}
FALLBACK = ("profile", "primary", "reason", "expires")
_ALIASES = {"tp": "tp_size", "tensor_parallel_size": "tp_size", "model": "model_path"}


def view(snapshot: Any, limits: Mapping[str, Any] | None = None, catalog: signatures.Catalog | None = None) -> dict[str, Any]:
    """Facts of a snapshot (see data/snapshot.schema.json; any garbage is taken).

    `limits`: a loaded policy. `catalog`: signatures, whose patterns for controller-side sources are applied here.
    """
    snap = mapping(snapshot)
    limits = limits if limits is not None else policy.load()
    catalog = catalog if catalog is not None else signatures.load()
    sources = {name: mapping(snap.get(name)) for name in snap}
    seen = mapping(snap.get("observed"))
    target = sources.get("target", {})
    gpu = _gpu(sources.get("gpus", {}), target, seen)
    hits, tail = _hits(sources, catalog)
    flags = _flags(target, seen, hits, sources.get("log", {}).get("server_args"), sources.get("http", {}).get("server_info"))
    facts: dict[str, Any] = {
        "engine": first(word(target.get("engine"), "sglang", "vllm", "other"), word(seen.get("engine"), "sglang", "vllm", "other")),
        "engine_version": first(text(target.get("engine_version")), text(seen.get("engine_version"))),
        "gpu": gpu,
        "gpus": _gpus(sources.get("gpus", {}), mapping(seen.get("gpus"))),
        "flags": flags,
        "env": {key: str(value)[:200] for key, value in {**mapping(seen.get("environment")), **mapping(target.get("environment"))}.items()},
        "hits": hits,
        "xid": xid.read(_kernel_lines(sources.get("kernel", {}))),
        "host": _host(sources.get("system", {}), mapping(seen.get("host"))),
        "readable": _readable(sources),
    }
    facts["version"] = [int(part) for part in re.findall(r"\d+", facts["engine_version"] or "")[:3]]
    facts.update(_process(sources, seen))
    facts.update(_http(sources, seen, limits))
    log = sources.get("log", {})
    facts["silent_s"] = first(number(log.get("silent_s")), number(seen.get("silent_s")))
    ranks = number(flags.get("tp_size"))
    located = phases.locate(hits["log"], int(ranks) if ranks and 1 <= ranks <= 4096 else None, tail, facts["engine"])
    facts["ranks"] = {"done": located["ranks_done"], "count": located["ranks"], "behind": located["behind"]}
    facts["phase"] = located["phase"]
    facts["tail"] = sorted(tail)
    release = re.search(r"nccl==([\d.]{1,20})", mapping(hits["log"].get("nccl_version")).get("last") or "")
    facts["nccl_release"] = release[1] if release else None
    facts["last_line"] = text(log.get("last_line"))
    facts["bar"] = mapping(log.get("bar")) or None
    asked_at = moment(mapping(mapping(snap.get("http")).get("generate")).get("asked_at"))
    # A batch after our own request may be that request's.
    facts["last_batch_at"] = min(filter(None, (_last(hits["log"], "decode_batch", "prefill_batch"), asked_at)), default=None)
    # Decode lines come every forty steps: our own probes make none, only the line of their prefill.
    facts["last_decode_at"] = _last(hits["log"], "decode_batch")
    facts["batch_while_asked"] = None if None in (facts["last_decode_at"], asked_at) else facts["last_decode_at"] > asked_at
    facts["last_kernel_at"] = _last_kernel(hits["kernel"])
    facts["records"] = _records(mapping(snap.get("records")))
    facts["collected_at"] = number(snap.get("collected_at"))
    facts["window_s"] = number(snap.get("window_s"))
    facts["syscalls"] = {"pattern": text(sources.get("syscalls", {}).get("pattern"))}
    facts.update(progress.judge(facts, sources, seen, limits))
    return facts


def _readable(sources: dict[str, dict[str, Any]]) -> list[str]:
    """Sources that answered. That there is no process, or nobody on the port, is an answer too."""
    answers = {"processes": ("ok", "absent"), "http": ("ok", "absent"), "syscalls": ("ok", "absent")}
    if number(sources.get("target", {}).get("gpus_expected")) == 0:
        answers["gpus"] = ("ok", "absent")  # a host without GPUs has no tool for them
    found = {name for name, source in sources.items() if source.get("status") in answers.get(name, ("ok",))}
    if mapping(sources.get("processes", {}).get("main")):
        found -= {name for name in ("syscalls", "http") if sources.get(name, {}).get("status") == "absent"}
    return sorted(found)


def _hits(sources: dict[str, dict[str, Any]], catalog: signatures.Catalog) -> tuple[dict[str, dict[str, Any]], set[str]]:
    hits: dict[str, dict[str, Any]] = {}
    for source in signatures.SOURCES:
        given = mapping(sources.get(source, {}).get("hits"))
        hits[source] = {name: _hit(hit) for name, hit in given.items() if (number(mapping(hit).get("count")) or 0) >= 1}
    for source in ("kernel", "stacks", "strace", "nccl", "smi", "http"):
        if not hits[source]:
            hits[source] = catalog.scanners[source].scan(_texts(sources.get(source, {}).get("lines")))
    if not hits["strace"]:
        hits["strace"] = catalog.scanners["strace"].scan(_texts(sources.get("syscalls", {}).get("lines")))
    for source in ("nccl", "stacks"):
        for name in catalog.lines[source]:
            if name in hits["log"] and name not in hits[source]:
                hits[source][name] = hits["log"][name]
    last = _texts(sources.get("log", {}).get("tail"))[-TAIL_LINES:]
    hits["tail"] = catalog.scanners["tail"].scan(last)
    return hits, set(hits["tail"])


def _hit(hit: Any) -> dict[str, Any]:
    hit = mapping(hit)
    return {
        "count": int(number(hit.get("count")) or 0),
        "first": (text(hit.get("first")) or "")[: lines.MAX_QUOTE],
        "last": (text(hit.get("last")) or "")[: lines.MAX_QUOTE],
        "first_time": moment(hit.get("first_time")),
        "last_time": moment(hit.get("last_time")),
        "ranks": dict(list(mapping(hit.get("ranks")).items())[:1024]),
    }


def _texts(value: Any) -> list[str]:
    return [lines.clean(line) for line in items(value) if isinstance(line, str)]


def _kernel_lines(kernel: dict[str, Any]) -> list[str]:
    found = _texts(kernel.get("lines"))
    for hit in mapping(kernel.get("hits")).values():
        found.extend(line for line in (mapping(hit).get("first"), mapping(hit).get("last")) if isinstance(line, str))
    return found


def _flags(target: dict[str, Any], seen: dict[str, Any], hits: dict[str, dict[str, Any]], printed: Any, reported: Any) -> dict[str, str]:
    flags: dict[str, str] = {}
    default = hits["log"].get("triton_default")
    if default:
        match = re.search(r"Use (\w+) backend by default", default["last"])
        flags["attention_backend"] = match[1] if match else "triton"
    for command in (seen.get("command"), target.get("command")):
        flags.update(_arguments(command))
    # What the server says about itself is what is in effect.
    effective = (target.get("flags"), printed, {"attention_backend": mapping(reported).get("attention_backend")})
    for told in effective:
        flags.update({name: str(value) for name, value in mapping(told).items() if value not in (None, False, [], {})})
    return flags


def _arguments(command: Any) -> dict[str, str]:
    if isinstance(command, str):
        try:
            command = shlex.split(command[:8192])
        except ValueError:
            command = command[:8192].split()
    found: dict[str, str] = {}
    words = [item for item in items(command) if isinstance(item, str)]
    for index, item in enumerate(words):
        if not item.startswith("--"):
            continue
        name, equals, value = item[2:].partition("=")
        if not equals:
            following = words[index + 1] if index + 1 < len(words) else "--"
            value = "true" if following.startswith("--") else following
        name = name.replace("-", "_")
        found[_ALIASES.get(name, name)] = value
    return found


def _gpu(gpus: dict[str, Any], target: dict[str, Any], seen: dict[str, Any]) -> dict[str, Any]:
    devices = [mapping(device) for device in items(gpus.get("devices"))]
    names = [text(device.get("name")) for device in devices]
    model = first(*names, text(target.get("gpu_model")), text(seen.get("gpu_model")))
    capability = first(*(number(device.get("compute_cap")) for device in devices), number(seen.get("compute_capability")))
    sm = round(capability * 10) if capability is not None and 0 < capability < 100 else None
    if sm is None and model and re.search(r"RTX PRO \d+ Blackwell|RTX 50\d0|RTX PRO 6000", model):
        sm = 120
    kind = word(target.get("gpu_class"), "sm120_pcie", "nvlink")
    if kind is None and sm in (120, 121):
        kind = "sm120_pcie"
    if kind is None and model and re.search(r"\b(?:[AH][12]00|H20|H800|A800|B[123]00|GB[123]00)\b", model):
        kind = "nvlink"
    nvlink = flag(mapping(seen.get("host")).get("nvlink"))
    if nvlink is None and kind is not None and devices:
        nvlink = kind == "nvlink"
    count = first(number(gpus.get("count")), len(devices) or None, number(mapping(seen.get("gpus")).get("count")))
    expected = first(number(target.get("gpus_expected")), number(seen.get("gpus_expected")))
    return {"model": model, "sm": sm, "class": kind, "nvlink": nvlink, "count": count, "expected": expected}


def _gpus(gpus: dict[str, Any], seen: dict[str, Any]) -> dict[str, Any]:
    devices = [mapping(device) for device in items(gpus.get("devices"))]
    facts: dict[str, Any] = {"status": text(gpus.get("status")), "seen_by_pci": number(seen.get("seen_by_pci"))}
    for key, live, told in (
        ("util", "utilization_pct", "util_pct"),
        ("power", "power_w", "power_w"),
        ("limit", "power_limit_w", "power_limit_w"),
        ("memory", "memory_used_mib", "memory_used_mib"),
    ):
        found = [n for n in (number(device.get(live)) for device in devices) if n is not None] or numbers(seen.get(told))
        facts[f"{key}_min"], facts[f"{key}_max"] = (min(found), max(found)) if found else (None, None)
    counted = [len(items(device.get("processes"))) for device in devices if isinstance(device.get("processes"), list)]
    facts["processes"] = sum(counted) if counted else number(first(*numbers(seen.get("processes")), None))
    asked_for = seen.get("recovery_action")
    words = [device.get("recovery_action") for device in devices] + (items(asked_for) if isinstance(asked_for, list) else [asked_for])
    asked = [xid.recovery(text(action)) for action in words]
    known = [action for action in asked if action]
    facts["recovery_action"] = max(known, key=xid.RECOVERY.index) if known else None
    return facts


def _host(system: dict[str, Any], seen: dict[str, Any]) -> dict[str, Any]:
    return {
        "iommu": flag(seen.get("iommu")) if flag(seen.get("iommu")) is not None else text(seen.get("iommu")),
        "acs_redirect": flag(seen.get("acs_redirect")),
        "container": flag(seen.get("container")),
        "ptrace_denied": flag(seen.get("ptrace_denied")),
        "fabric_manager": text(seen.get("fabric_manager")),
        "driver_loaded": text(seen.get("driver_loaded")),
        "driver_userspace": text(seen.get("driver_userspace")),
        "boot_id_changed": flag(seen.get("boot_id_changed")),
        "shm_free_mib": first(number(system.get("shm_free_mib")), number(seen.get("shm_free_mib"))),
        "memory_available_mib": number(system.get("memory_available_mib")),
        "pids_at_limit": first(flag(system.get("pids_at_limit")), flag(seen.get("pids_at_limit"))),
    }


def _ended(sources: dict[str, dict[str, Any]]) -> str:
    """exited, where something is left of a server that once ran; absent, where nothing shows that there ever was one."""
    service, log, records = sources.get("service", {}), sources.get("log", {}), sources.get("records", {})
    visits = [mapping(visit) for visit in items(mapping(records.get("visits")).get("visits"))]
    ran = (
        service.get("state") == "failed"
        or any(service.get(key) is not None for key in ("exit_code", "exit_signal"))
        or text(log.get("last_line")) is not None
        or any(number(visit.get("main_pid")) for visit in visits)
    )
    return "exited" if ran else "absent"


def _process(sources: dict[str, dict[str, Any]], seen: dict[str, Any]) -> dict[str, Any]:
    service, processes, port = sources.get("service", {}), sources.get("processes", {}), sources.get("port", {})
    state = word(service.get("state"), "running", "stopped", "failed", "starting", "absent")
    main = mapping(processes.get("main"))
    told = word(seen.get("process"), "running", "exited", "absent")
    alive: bool | None = None
    if main:
        alive = main.get("state") not in ("Z", "X")
    elif state == "starting":
        alive = True
    elif state == "running" and number(service.get("main_pid")) and processes.get("status") == "ok":
        alive = None  # its manager and the process table contradict each other: it ended just now, or hides
    elif processes.get("status") == "ok" or (processes.get("status") == "absent" and state != "running"):
        alive = False
    elif state and state != "absent":  # a manager that knows no such service says nothing about servers that others started
        alive = state in ("running", "starting")
    elif told:
        alive = told == "running"
    schedulers, running = number(processes.get("schedulers")), number(processes.get("schedulers_alive"))
    members = [mapping(member) for member in items(processes.get("members"))]
    frozen = items(processes.get("stopped")) or [member.get("pid") for member in members if member.get("state") == "T"]
    ours = flag(port.get("ours"))
    listening = False if ours is False else flag(port.get("listening"))
    started = first(number(main.get("start_time")), number(service.get("since")))
    return {
        "service": state,
        "desired": word(service.get("desired"), "running", "stopped"),
        "alive": alive,
        "process": told if not (service or processes) else ("running" if alive else _ended(sources) if alive is False else None),
        "exit_code": first(number(service.get("exit_code")), number(seen.get("exit_code"))),
        "exit_signal": number(service.get("exit_signal")),
        "survived_sigkill": flag(seen.get("survived_sigkill")),
        "schedulers": schedulers,
        "schedulers_alive": running,
        "workers_lost": bool(schedulers is not None and running is not None and running < schedulers),
        "frozen": [pid for pid in frozen if isinstance(pid, int)][:64],
        "unkillable": [member.get("pid") for member in members if str(member.get("state")).startswith("D")][:64],
        "port": ("listening" if listening else "closed") if listening is not None else word(seen.get("port"), "listening", "closed"),
        "port_ours": ours,
        "started_at": started,
        "uptime_s": number(seen.get("uptime_s")),
    }


def _http(sources: dict[str, dict[str, Any]], seen: dict[str, Any], limits: Mapping[str, Any]) -> dict[str, Any]:
    # Answers on a port that somebody else holds say nothing about this server.
    http = {} if flag(sources.get("port", {}).get("ours")) is False else sources.get("http", {})
    generate, metrics = mapping(http.get("generate")), mapping(http.get("metrics"))
    last = mapping(metrics.get("second")) or mapping(metrics.get("first"))
    delta = number(metrics.get("tokens_delta"))
    answered = word(generate.get("result"), *PROBES["generate"])
    # Tokens of our own request prove nothing when it was not answered: the engine may compute what never gets out.
    waited = answered == "timeout"
    own = limits["serving"]["own_tokens"] if waited else 0
    decoded = number(metrics.get("decode_delta"))
    others = decoded is not None and decoded > (limits["serving"]["own_decoded"] if waited else 0)
    # A counter that fell belongs to another incarnation.
    tokens = None if delta is None or delta < 0 else ("advancing" if delta > own or others else "frozen")
    if answered == "ok" and number(generate.get("tokens")) == 0:
        answered = "error"
    return {
        "generate": first(answered, word(seen.get("generate"), *PROBES["generate"])),
        "generate_tokens": number(generate.get("tokens")),
        "generate_s": number(generate.get("seconds")),
        "health": first(word(mapping(http.get("health")).get("result"), *PROBES["health"]), word(seen.get("health"), *PROBES["health"])),
        "tokens_delta": delta,
        "tokens": first(tokens, word(seen.get("token_counters"), "advancing", "frozen")),
        "running_requests": first(number(last.get("num_running_reqs")), number(seen.get("running_requests"))),
        "kv_tokens": number(mapping(http.get("server_info")).get("max_total_num_tokens")),
    }


def _last(hits: dict[str, Any], *names: str) -> float | None:
    """Epoch of the last line of these names. None: not known."""
    return max((when for name in names if (when := mapping(hits.get(name)).get("last_time"))), default=None)


def _last_kernel(hits: dict[str, Any]) -> float | None:
    """Epoch of the youngest kernel line that hit. None: there is none, or one has no time."""
    times = [hit.get("last_time") for hit in hits.values()]
    return None if not times or None in times else max(times)


def _utc(value: Any) -> str | None:
    at = moment(value)
    return (
        None
        if at is None or not 0 <= at < 4e9
        else datetime.datetime.fromtimestamp(at, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    )


def _records(records: dict[str, Any]) -> dict[str, Any]:
    fallback, manifest = mapping(records.get("fallback")), mapping(records.get("manifest"))
    visits = mapping(records.get("visits")).get("visits")
    return {
        "fallback": {key: _utc(fallback[key]) if key == "expires" else text(fallback.get(key)) for key in FALLBACK if key in fallback}
        if fallback.get("profile")
        else None,
        "profile": text(manifest.get("profile")),
        "context_length": number(manifest.get("context_length")),
        "visits": [mapping(visit) for visit in items(visits)],
    }
