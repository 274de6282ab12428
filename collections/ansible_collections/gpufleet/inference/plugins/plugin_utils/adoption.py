# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What to do about a server that runs already: leave it alone, adopt it, replace it, or refuse. Pure."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.gpufleet.inference.plugins.module_utils import _redact

from . import deployment, engine_flags
from .profiles import load

# Clients notice these although the engine itself runs the same with others, and what they are without the flag.
SEEN_BY_CLIENTS: dict[str, Any] = {"host": "127.0.0.1", "served-model-name": None, "reasoning-parser": None, "tool-call-parser": None}
# The places where a setting of the engine stands in an inventory.
_PREFIX = "sglang_"


@dataclass
class Comparison:
    """What runs against what is wanted. V(keep) are the variables that would make the inventory want what runs."""

    differences: list[str] = field(default_factory=list)
    keep: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def decide(
    server: Mapping[str, Any] | None, wanted: Mapping[str, Any], settings: Mapping[str, Any], runtime: str, replace: bool
) -> dict[str, Any]:
    """Returns adopt, replace, refused (null or why), differences, keep and notes.

    V(server): what M(running_server_info) returned. V(wanted): what V(deployment.build) returned for V(settings). A server of our own
    that runs as it is wanted stays up; one that does not is restarted like after any change. A stranger's is never ended unasked.
    """
    result: dict[str, Any] = {"adopt": False, "replace": False, "refused": None, "differences": [], "keep": {}, "notes": []}
    if server is None or server["owner"] == "service":
        return result
    found = compare(server, wanted, settings)
    result.update(differences=found.differences, keep=found.keep, notes=found.notes)
    if server["owner"]:
        result["adopt" if not found.differences else "replace"] = True
    elif replace:
        result["replace"] = True
        if server["kept_by"]:
            result["refused"] = (
                f"{_who(server)} can not be replaced: {server['kept_by']} would start it again; stop it and disable it there"
            )
    elif runtime != "existing":
        result["refused"] = stranger(server)
    elif found.differences:
        result["refused"] = _refusal(server, found)
    else:
        result["adopt"] = True
    return result


def stranger(server: Mapping[str, Any]) -> str:
    """Returns why a server that somebody else started stops a deployment that does not adopt."""
    command = " ".join(str(word) for word in server["command"])
    return (
        f"{_who(server)} was not started from here: {command}. To take it over as it runs, set sglang_runtime: existing"
        f" (and sglang_venv: {server['venv']}); to end it and start ours, sglang_replace_running: true"
    )


def compare(server: Mapping[str, Any], wanted: Mapping[str, Any], settings: Mapping[str, Any]) -> Comparison:
    """Returns the differences that matter to the engine or to its clients, and what the next start would do differently besides."""
    result = Comparison()
    version, gpu_class = str(settings["engine_version"]), wanted["gpu_class"]
    if server["environment"] is None:
        result.differences.append("its environment can not be read: run this as root")
    if server["container"]:
        result.differences.append("it runs in a container, so its paths are not those of the host")
    environment = server["environment"] or {}
    running = deployment.effective(server["command"], environment, gpu_class, version, settings.get("gpu_model"))
    expected = {name: value for name, value in wanted["effective"].items() if not _redact.is_secret_name(name)}
    running = {name: value for name, value in running.items() if not _redact.is_secret_name(name)}
    if server["environment"] is None:
        running.update({name: value for name, value in expected.items() if name.isupper()})
    result.differences += deployment.differs(running, expected)
    changed = [name for name in sorted({*running, *expected}) if running.get(name) != expected.get(name)]
    _keep(result, {name: running.get(name) for name in changed}, settings)
    _compare_for_clients(result, server, wanted, settings, version)
    _compare_secrets(result, server, wanted)
    _note(result, server, wanted)
    return result


def _compare_for_clients(
    result: Comparison, server: Mapping[str, Any], wanted: Mapping[str, Any], settings: Mapping[str, Any], version: str
) -> None:
    ours, theirs = engine_flags.parse(wanted["command"], version), engine_flags.parse(server["command"], version)
    for flags in (ours, theirs):  # without a name of its own a model is known by its path
        flags.setdefault("served-model-name", flags.get("model-path"))
    rows = [(name, theirs.get(name, default), ours.get(name, default)) for name, default in SEEN_BY_CLIENTS.items()]
    rows.append(("model-path", server["model_path"], os.path.normpath(str(settings["model_path"]))))
    python = str(settings.get("python") or "")
    rows.append(("venv", server["venv"], os.path.dirname(os.path.dirname(python)) or None))
    for name, left, right in rows:
        if left != right:
            result.differences.append(f"{name.replace('-', '_')}: {left} -> {right}")
            _keep(result, {name: left}, settings)


def _compare_secrets(result: Comparison, server: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    matters = tuple(load().environment_that_matters)
    salt, theirs = server["secrets"]["salt"], server["secrets"]["values"]
    ours = _redact.fingerprints([str(word) for word in wanted["command"]], wanted["environment"], salt)
    for name in sorted({*ours, *theirs}):
        if (name.startswith("-") or name.startswith(matters)) and ours.get(name) != theirs.get(name):
            what = "not set" if name not in theirs else "another value" if name in ours else "set"
            result.differences.append(f"{name}: {what} -> {'set' if name in ours else 'not set'}")


def _note(result: Comparison, server: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    matters = tuple(load().environment_that_matters)
    lost = sorted(name for name in server["environment"] or {} if not name.startswith(matters) and name not in wanted["environment"])
    if lost:
        result.notes.append(f"the next start will be without {', '.join(lost)} unless sglang_extra_environment has them")
    if server["kept_by"]:
        result.notes.append(f"{server['kept_by']} starts it again when it ends: disable it there, or two will run")
    if server["log_path"] is None:
        result.notes.append("its output goes to no file, so its log can not be read until it is started again")


def _keep(result: Comparison, values: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    """Adds the variables of an inventory that would want these values, on top of what it has."""
    data = load()
    for given, value in values.items():
        name = given.replace("_", "-")
        if name == "venv":
            result.keep[f"{_PREFIX}venv"] = value
        elif given.isupper():
            variables = result.keep.setdefault(f"{_PREFIX}extra_environment", dict(settings.get("extra_environment") or {}))
            variables[given] = value
        elif "setting" in data.base.get(name, {}) and value is not None:
            result.keep[_PREFIX + data.base[name]["setting"]] = value
        else:
            flags = result.keep.setdefault(f"{_PREFIX}extra_flags", dict(settings.get("extra_flags") or {}))
            flags[name] = value


def _who(server: Mapping[str, Any]) -> str:
    return f"the server that runs as process {server['pid']} (port {server['port']}, in {server['work_dir']}, user {server['user']})"


def _refusal(server: Mapping[str, Any], found: Comparison) -> str:
    variables = {name: _hidden(value) for name, value in found.keep.items()}
    ways = f"to keep it as it runs, set {json.dumps(variables, sort_keys=True)}; to " if variables else "to "
    return (
        f"{_who(server)} is not what the inventory wants, nothing was changed: {'; '.join(found.differences)}. Two ways out: "
        f"{ways}stop it after its running requests and start ours, set sglang_replace_running: true"
    )


def _hidden(value: Any) -> Any:
    """A value without the secrets that the inventory may have in it."""
    if not isinstance(value, Mapping):
        return value
    return {name: _redact.MASK if item is not None and _redact.is_secret_name(str(name)) else item for name, item in value.items()}
