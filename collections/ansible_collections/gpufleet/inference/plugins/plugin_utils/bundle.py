# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read a bundle: a directory of evidence about one server, and turn it into a snapshot.

Text is taken as it comes: bytes that are no UTF-8, carriage-return bars, colours, container and journal prefixes, a first line cut in half.
What is read is bounded by bytes: of a large file its head and its tail.
"""

from __future__ import annotations

import csv
import functools
import json
import os
import pathlib
import re
from collections.abc import Mapping
from typing import Any
from xml.etree import ElementTree

import yaml
from ansible_collections.gpufleet.inference.plugins.plugin_utils import lines, policy, values
from ansible_collections.gpufleet.inference.plugins.plugin_utils.signatures import Catalog

HEAD, TAIL = 1 << 20, 4 << 20
MAX_SNAPSHOT = 32 << 20
TEXTS = {
    "server.log": "server",
    "kernel.log": "kernel",
    "stacks.txt": "stacks",
    "strace.txt": "strace",
    "nvidia-smi.txt": "smi",
    "nccl.log": "nccl",
    "http.txt": "http",
}
_INCARNATION = re.compile(r"\bserver_args=(?:ServerArgs\(|\{)")
_ARGUMENTS = re.compile(
    r"['\"]?\b(attention_backend|tp_size|disable_cuda_graph|disable_custom_all_reduce|context_length)['\"]?\s*[=:]\s*['\"]?([\w.-]{1,60})"
)


class BundleError(ValueError):
    """A bundle that can not be used; the text is `<file>: <what is wrong>`."""


def read(path: str, catalog: Catalog) -> dict[str, Any]:
    """The snapshot of a bundle directory. Raises BundleError."""
    directory = pathlib.Path(path)
    if not directory.is_dir():
        raise BundleError(f"{path}: not a directory")
    texts: dict[str, str] = {}
    for name in TEXTS:
        file = directory / name
        if file.is_file():
            texts[name] = _text(file)
    observed = _observed(directory / "observed.yml")
    snapshot = assemble(texts, observed, catalog)
    xml = directory / "nvidia-smi.xml"
    if xml.is_file():
        snapshot["gpus"] = _xml(xml)
    saved = directory / "snapshot.json"
    if saved.is_file():
        for source, content in _saved(saved).items():
            speaks = content is not None and values.mapping(content).get("status") not in ("absent", "unavailable")
            if speaks or source not in snapshot:
                snapshot[source] = content
    return snapshot


def assemble(texts: Mapping[str, str], observed: Mapping[str, Any] | None, catalog: Catalog) -> dict[str, Any]:
    """A snapshot from texts by file name (see TEXTS) and observed facts."""
    snapshot: dict[str, Any] = {"schema": 1, "observed": dict(observed or {})}
    for name, source in TEXTS.items():
        if name not in texts:
            continue
        cleaned = [line for line in map(lines.clean, lines.split(texts[name])) if line]
        if source == "server":
            _server(snapshot, cleaned, catalog)
        else:
            entry = {"status": "ok", "hits": catalog.scanners[source].scan(cleaned), "lines": cleaned[-200:]}
            snapshot[source] = entry
            if source == "kernel":
                entry["lines"] = [line for line in cleaned if "Xid" in line][-2000:]
            if source == "smi":
                devices = _csv(cleaned)
                if devices:
                    snapshot["gpus"] = {"status": "ok", "count": len(devices), "devices": devices}
    return snapshot


def _server(snapshot: dict[str, Any], cleaned: list[str], catalog: Catalog) -> None:
    """The server's log: only lines of its last start count."""
    starts = [index for index, line in enumerate(cleaned) if _INCARNATION.search(line)]
    # Argument resolution logs a few lines before server_args=, all of the same start.
    start = max(0, starts[-1] - 20) if len(starts) > 1 else 0
    current = cleaned[start:]
    bars = [found for found in map(lines.progress_bar, current) if found]
    times = [when for when in (lines.stamp(line)[0] for line in current[-200:]) if when is not None]
    snapshot["log"] = {
        "status": "ok",
        "hits": catalog.scanners["server"].scan(current),
        "tail": current[-40:],
        "last_line": current[-1] if current else None,
        "last_time": times[-1] if times else None,
        "bar": bars[-1] if bars else None,
    }
    if starts:
        flags = {name: value for name, value in _ARGUMENTS.findall(cleaned[starts[-1]]) if value not in ("None", "False")}
        snapshot["target"] = {"flags": flags}


def _text(file: pathlib.Path) -> str:
    try:
        with file.open("rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            if size <= HEAD + TAIL:
                data = stream.read(HEAD + TAIL)
            else:
                data = stream.read(HEAD) + b"\n"
                stream.seek(size - TAIL)
                data += stream.read(TAIL)
    except OSError as error:
        raise BundleError(f"{file.name}: {error.strerror}") from error
    return data.decode("utf-8", "replace")


def _saved(file: pathlib.Path) -> dict[str, Any]:
    try:
        if file.stat().st_size > MAX_SNAPSHOT:
            raise BundleError(f"{file.name}: larger than {MAX_SNAPSHOT >> 20} MiB")
        content = json.loads(file.read_text(encoding="utf-8", errors="replace"))
    except OSError as error:
        raise BundleError(f"{file.name}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise BundleError(f"{file.name}: no JSON: {error}") from error
    if not isinstance(content, dict):
        raise BundleError(f"{file.name}: expected an object, found {type(content).__name__}")
    if content.get("schema", 1) != 1:
        raise BundleError(f"{file.name}: schema {content['schema']!r} is not known (known: 1)")
    return content


@functools.lru_cache(maxsize=1)
def _schema() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((policy.DATA / "observed.yml").read_text(encoding="utf-8"))
    return loaded


def _observed(file: pathlib.Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        content = yaml.safe_load(_text(file))
    except (yaml.YAMLError, RecursionError) as error:
        raise BundleError(f"{file.name}: no YAML: {' '.join(str(error).split())[:200]}") from error
    if content is None:
        return {}
    check_observed(content, _schema(), file.name)
    result: dict[str, Any] = content
    return result


def check_observed(content: Any, schema: Mapping[str, Any], where: str, prefix: str = "") -> None:
    """Raise BundleError that names an unknown key, or a value that does not fit."""
    if not isinstance(content, dict):
        raise BundleError(f"{where}: {prefix.rstrip('.') or 'top level'}: expected a mapping, found {type(content).__name__}")
    for key, value in content.items():
        name = f"{prefix}{key}"
        if key not in schema:
            raise BundleError(f"{where}: unknown key {name} (accepted: {', '.join(prefix + known for known in schema)})")
        rule = schema[key]
        if value is None:
            continue
        if isinstance(rule, dict) and "keys" in rule:
            check_observed(value, rule["keys"], where, f"{name}.")
        elif isinstance(rule, dict):
            if value not in rule["words"]:
                raise BundleError(f"{where}: {name}: {value!r} is none of {', '.join(rule['words'])}")
        elif not _fits(rule, value):
            raise BundleError(f"{where}: {name}: expected {rule}, found {value!r}")


def _fits(rule: str, value: Any) -> bool:
    if rule == "number":
        return values.number(value) is not None
    if rule == "numbers":
        return all(values.number(item) is not None for item in (value if isinstance(value, list) else [value]))
    if rule == "flag":
        return values.flag(value) is not None
    return rule == "any" or values.text(value) is not None


def _csv(cleaned: list[str]) -> list[dict[str, Any]]:
    """Devices of `nvidia-smi --query-gpu=... --format=csv`."""
    names = {
        "index": "index", "name": "name", "pci.bus_id": "pci_bus_id", "compute_cap": "compute_cap", "memory.used": "memory_used_mib",
        "memory.total": "memory_total_mib", "utilization.gpu": "utilization_pct", "power.draw": "power_w", "power.limit": "power_limit_w",
        "gpu_recovery_action": "recovery_action",
    }  # fmt: skip
    header: list[str | None] = []
    devices: list[dict[str, Any]] = []
    for row in csv.reader(cleaned[:200], skipinitialspace=True):
        columns = [names.get(cell.split(" [")[0].strip()) for cell in row]
        if not header and sum(column is not None for column in columns) >= 2:
            header = columns
        elif header and len(row) == len(header):
            device: dict[str, Any] = {}
            for column, cell in zip(header, row):
                if column in ("name", "pci_bus_id", "recovery_action"):
                    device[column] = cell.strip()
                elif column:
                    device[column] = values.number(cell.split()[0]) if cell.strip() else None
            devices.append(device)
    return devices


def _xml(file: pathlib.Path) -> dict[str, Any]:
    """GPUs of `nvidia-smi -q -x`."""
    text = _text(file)
    if "<!ENTITY" in text:
        raise BundleError(f"{file.name}: entities are not allowed")
    try:
        root = ElementTree.fromstring(text)  # noqa: S314 - bounded in size, and without entities
    except ElementTree.ParseError as error:
        raise BundleError(f"{file.name}: no XML: {error}") from error

    def amount(gpu: ElementTree.Element, *paths: str) -> float | None:
        for path in paths:
            found = gpu.findtext(path)
            if found and values.number(found.split()[0]) is not None:
                return values.number(found.split()[0])
        return None

    devices = [
        {
            "uuid": gpu.findtext("uuid"),
            "name": gpu.findtext("product_name"),
            "pci_bus_id": gpu.get("id"),
            "memory_used_mib": amount(gpu, "fb_memory_usage/used"),
            "memory_total_mib": amount(gpu, "fb_memory_usage/total"),
            "utilization_pct": amount(gpu, "utilization/gpu_util"),
            "power_w": amount(gpu, "gpu_power_readings/instant_power_draw", "gpu_power_readings/power_draw", "power_readings/power_draw"),
            "power_limit_w": amount(gpu, "gpu_power_readings/current_power_limit", "power_readings/power_limit"),
            "recovery_action": gpu.findtext("gpu_recovery_action"),
            "processes": [{"pid": values.number(process.findtext("pid"))} for process in gpu.findall("processes/process_info")],
        }
        for gpu in root.findall("gpu")
    ]
    return {"status": "ok", "driver_version": root.findtext("driver_version"), "count": len(devices), "devices": devices}
