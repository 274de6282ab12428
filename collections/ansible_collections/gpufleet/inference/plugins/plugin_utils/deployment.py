# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From settings to a command line and an environment, and what a command line amounts to in effect."""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from . import engine_flags, nccl
from .profiles import DeploymentError, GpuClass, Profile, Profiles, load

ENTRY_POINT = ["-m", "sglang.launch_server"]
# What a server that somebody else started may be without: the engine has a choice of its own.
_LEFT_TO_THE_ENGINE = ("context-length", "mem-fraction-static")
_OPTIONAL = {"profile", "ladder", "gpu_class", "gpu_model", "gpus", "extra_flags", "extra_environment"}
# Accepted by the engine's own parser and fatal only after the weights were loaded. 262144: the longest context of Kimi-K2.5.
_RANGES = {"port": (1, 65535), "tp_size": (1, 64), "context_length": (1, 262144)}
ATTENTION_HEADS = 64  # Kimi-K2.5's text model


def build(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns how to start a server: profile, gpu_class, ladder, command, arguments, environment, effective, description.

    V(settings): profile and ladder (null: the default of the GPU class), gpu_class, gpu_model, engine_version, python, model_path,
    served_model_name, host, port, tp_size, context_length, mem_fraction_static, extra_flags (null drops a flag), extra_environment.
    Raises DeploymentError with one message when the engine, the GPU class or NCCL would not take it.
    """
    data = load()
    wish = _complete(settings, data)
    version = str(wish["engine_version"])
    engine_flags.check_floor(version)
    gpu_class = _gpu_class(wish, data)
    _check_gpus(wish, gpu_class)
    profile = data.profile(wish["profile"] or gpu_class.default)
    data.of_class([profile.name], gpu_class.name)
    _check_engine(profile, version)
    ladder = data.of_class(list(gpu_class.ladder if wish["ladder"] is None else wish["ladder"]), gpu_class.name)

    flags = _flags(wish, profile, data)
    words = list(_words(flags))
    problems = [*engine_flags.check(words, version), *_refused(flags, gpu_class), *_contradictions(flags)]
    environment = _environment(profile, wish["extra_environment"] or {})
    problems.extend(nccl.check(environment, gpu_class.name))
    if problems:
        raise DeploymentError(f"profile {profile.name}: {'; '.join(problems)}")
    return {
        "profile": profile.name,
        "gpu_class": gpu_class.name,
        "ladder": ladder,
        "command": [str(wish["python"]), *ENTRY_POINT, *words],
        "arguments": words,
        "environment": environment,
        "effective": effective(words, environment, gpu_class.name, version, wish["gpu_model"]),
        "description": profile.purpose,
    }


def effective(
    argv: Sequence[str], environment: Mapping[str, Any], gpu_class: str | None, version: str, gpu_model: str | None = None
) -> dict[str, Any]:
    """Returns what a server really runs with: flags with underscores, the engine's own choices filled in, and environment variables."""
    data = load()
    result = {**data.flag_defaults, **engine_flags.parse(argv, version)}
    if gpu_class in data.gpu_classes:
        chosen = data.gpu_classes[gpu_class]
        result = {**_engine_choices(chosen, gpu_model), **result, **chosen.engine_overrides}
    result = {flag.replace("-", "_"): value for flag, value in result.items() if flag not in data.not_a_difference}
    given = {k: str(v) for k, v in environment.items() if k.startswith(tuple(data.environment_that_matters))}
    return {**result, **nccl.in_effect({**data.environment_defaults, **given})}


def differs(before: Mapping[str, Any], after: Mapping[str, Any], keys: set[str] | None = None) -> list[str]:
    """Returns one line per difference between two effective configurations, only for V(keys) when given."""
    names = sorted(keys if keys is not None else {*before, *after})
    changed = [name for name in names if before.get(name) != after.get(name)]
    return [f"{name}: {_shown(before.get(name))} -> {_shown(after.get(name))}" for name in changed]


def controlled(gpu_class: str) -> set[str]:
    """Returns the keys of an effective configuration that the profiles of a GPU class decide about."""
    profiles = [p for p in load().profiles.values() if p.gpu_class == gpu_class]
    return {flag.replace("-", "_") for p in profiles for flag in p.flags} | {name for p in profiles for name in p.environment}


def _shown(value: Any) -> str:
    return "not set" if value is None else str(value)


def _complete(settings: Mapping[str, Any], data: Profiles) -> dict[str, Any]:
    known = {"model_path", *data.defaults, *_OPTIONAL}
    for name in settings:
        if name not in known:
            raise DeploymentError(f"unknown setting {name!r}; known are {', '.join(sorted(known))}")
    given = {name: value for name, value in settings.items() if value is not None and value != ""}
    if "model_path" not in given:
        raise DeploymentError("model_path is not set")
    for name in ("extra_flags", "extra_environment"):
        if not isinstance(given.get(name, {}), Mapping):
            raise DeploymentError(f"{name}: expected a dictionary, found {given[name]!r}")
    if not isinstance(given.get("ladder", []), Sequence) or isinstance(given.get("ladder"), str):
        raise DeploymentError(f"ladder: expected a list of profile names, found {given['ladder']!r}")
    wish = {**dict.fromkeys(_OPTIONAL), **data.defaults, **given}
    _check_numbers(wish)
    return wish


def _check_numbers(wish: Mapping[str, Any]) -> None:
    for name, (low, high) in _RANGES.items():
        if isinstance(wish[name], bool) or not isinstance(wish[name], int) or not low <= wish[name] <= high:
            raise DeploymentError(f"{name}: expected a whole number from {low} to {high}, found {wish[name]!r}")
    if not is_address(str(wish["host"])):
        raise DeploymentError(f"host: expected an address to bind such as 0.0.0.0, found {wish['host']!r}")
    if ATTENTION_HEADS % wish["tp_size"]:
        raise DeploymentError(f"tp_size: expected a divisor of the {ATTENTION_HEADS} attention heads, found {wish['tp_size']}")
    try:
        share = float(wish["mem_fraction_static"])
    except (TypeError, ValueError):
        share = 0.0
    if not 0 < share < 1:
        raise DeploymentError(f"mem_fraction_static: expected a number between 0 and 1, found {wish['mem_fraction_static']!r}")


def _gpu_class(wish: Mapping[str, Any], data: Profiles) -> GpuClass:
    if wish["gpu_class"]:
        return data.gpu_class(wish["gpu_class"])
    if wish["profile"]:
        return data.gpu_class(data.profile(wish["profile"]).gpu_class)
    model = f" of {wish['gpu_model']!r}" if wish["gpu_model"] else ""
    raise DeploymentError(f"the GPU class{model} is not known and no profile is set; classes are {', '.join(sorted(data.gpu_classes))}")


def _check_gpus(wish: Mapping[str, Any], gpu_class: GpuClass) -> None:
    if wish["gpus"] is None:
        return
    if gpu_class.without_gpus and wish["gpus"] > 0:
        raise DeploymentError(f"GPU class {gpu_class.name} is for hosts without a GPU, this host is to have {wish['gpus']}")
    if not gpu_class.without_gpus and wish["tp_size"] > wish["gpus"]:
        raise DeploymentError(f"tp_size: {wish['tp_size']} ranks need as many GPUs, this host is to have {wish['gpus']}")


def _check_engine(profile: Profile, version: str) -> None:
    key = engine_flags.version_key(version)
    low, high = profile.engine["min"], profile.engine.get("max")
    if key < engine_flags.version_key(low) or (high and key > engine_flags.version_key(high)):
        raise DeploymentError(f"profile {profile.name} is for SGLang {low} to {high or 'now'}, not for {version}")


def _flags(wish: Mapping[str, Any], profile: Profile, data: Profiles) -> dict[str, Any]:
    """Returns {flag without dashes: value}: base, then profile, then what the user adds or drops."""
    flags = {flag: wish[source["setting"]] if "setting" in source else source["value"] for flag, source in data.base.items()}
    flags.update(profile.flags)
    version = str(wish["engine_version"])
    for given, value in (wish["extra_flags"] or {}).items():
        name = str(given).lstrip("-").replace("_", "-")
        found = engine_flags.known(f"--{name}", version)
        name = found.name[2:] if found else name
        if "setting" in data.base.get(name, {}) and not (value is None and name in _LEFT_TO_THE_ENGINE):
            raise DeploymentError(f"extra_flags: --{name} has a setting of its own, {data.base[name]['setting']}")
        if value is False and found and found.kind == "onoff":
            flags[f"no-{name}"] = True
        else:
            flags[name] = value
    return {name: value for name, value in flags.items() if value is not None and value is not False}


def _words(flags: Mapping[str, Any]) -> Iterator[str]:
    for name, value in flags.items():
        yield f"--{name}"
        if isinstance(value, Mapping):
            yield json.dumps(value, sort_keys=True)
        elif isinstance(value, (list, tuple)):
            yield from map(str, value)
        elif value is not True:
            yield str(value)


def _refused(flags: Mapping[str, Any], gpu_class: GpuClass) -> Iterator[str]:
    for rule in gpu_class.refused:
        for flag in rule["flags"]:
            if flags.get(flag) in rule["values"]:
                yield f"--{flag} {flags[flag]} is refused on {gpu_class.name}: {rule['reason']} ({rule['source']})"


def _contradictions(flags: Mapping[str, Any]) -> Iterator[str]:
    """Yields what the engine's parser takes one by one and the engine fails on together, some of it after the weights were loaded."""
    nodes, rank = str(flags.get("nnodes", 1)), str(flags.get("node-rank", 0))
    if nodes.isdigit() and rank.isdigit() and int(rank) >= int(nodes):
        yield f"--node-rank {rank}: expected less than --nnodes, which is {nodes}"
    meeting = str(flags.get("dist-init-addr", ""))
    name, _colon, port = meeting.rpartition(":")
    if meeting and not (is_address(name.strip("[]")) and port.isdigit() and 1 <= int(port) <= 65535):
        yield f"--dist-init-addr: expected ADDRESS:PORT, found {meeting!r}"


def is_address(text: str) -> bool:
    """Whether a server can bind it: an IP address or the name of a host, without port or URL."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        # A name that ends in a number is an IPv4 address with a mistake.
        return re.fullmatch(r"(?=.{1,253}$)(?:\w(?:[\w-]{0,61}\w)?\.)*(?!\d+$)\w(?:[\w-]{0,61}\w)?", text, re.ASCII) is not None
    return True


def _environment(profile: Profile, extra: Mapping[str, Any]) -> dict[str, str]:
    result: dict[str, str] = dict(profile.environment)
    for name, value in extra.items():
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", str(name)):
            raise DeploymentError(f"extra_environment: {name!r} is no name for a variable")
        if value is None:
            result.pop(name, None)
            continue
        if not isinstance(value, (str, int, float)):
            raise DeploymentError(f"extra_environment: {name}: expected text or a number, found {value!r}")
        text = str(int(value)) if isinstance(value, bool) else str(value)
        if re.search(r"[\x00-\x1f\x7f]", text):
            raise DeploymentError(f"extra_environment: {name} holds a control character")
        result[str(name)] = text
    return result


def _engine_choices(gpu_class: GpuClass, gpu_model: str | None) -> dict[str, Any]:
    for row in gpu_class.engine_chooses_by_model:
        if gpu_model and any(model in gpu_model for model in row["models"]):
            return {**gpu_class.engine_chooses, **row["flags"]}
    return gpu_class.engine_chooses
