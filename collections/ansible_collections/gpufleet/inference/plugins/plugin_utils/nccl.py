# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The NCCL variables a deployment may set, from C(data/nccl.yml)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from .profiles import read_yaml


@cache
def _data() -> dict[str, Any]:
    return read_yaml("nccl.yml")


def check(environment: Mapping[str, str], gpu_class: str) -> list[str]:
    """Returns what is wrong with the NCCL variables of an environment, one sentence each; other variables are not looked at."""
    variables = _data()["variables"]
    errors = []
    for name, value in environment.items():
        if not name.startswith("NCCL_"):
            continue
        if name not in variables:
            errors.append(f"{name} is not on the list of NCCL variables that may be set: {', '.join(sorted(variables))}")
        else:
            errors.extend(f"{name}={value}: {problem}" for problem in _problems(variables[name], value, gpu_class))
    if not errors:
        for low, high in _data()["ordered"]:
            if low in environment and high in environment and int(environment[low]) > int(environment[high]):
                errors.append(f"{low}={environment[low]} is larger than {high}={environment[high]}")
    return errors


def in_effect(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment without NCCL variables that change nothing: at their default, made moot by another, or for logs only."""
    moot = {name for switch, names in _data()["makes_moot"].items() if environment.get(switch) == "1" for name in names}
    result = {}
    for name, value in environment.items():
        rule = _data()["variables"].get(name, {})
        if name not in moot and value != rule.get("default") and not rule.get("changes_nothing"):
            result[name] = value
    return result


def _problems(rule: Mapping[str, Any], value: str, gpu_class: str) -> Iterator[str]:
    if gpu_class in rule.get("not_for", {}):
        yield f"not on {gpu_class}: {rule['not_for'][gpu_class]}"
    if value in rule.get("refused", {}):
        yield f"refused: {rule['refused'][value]}"
    kind = rule["kind"]
    note = f" ({rule['note']})" if "note" in rule else ""
    if kind == "enum" and value not in rule["values"]:
        yield f"accepted are {', '.join(rule['values'])}{note}"
    if kind == "set":
        unknown = [part for part in value.split(",") if part not in rule["values"]]
        if unknown:
            yield f"accepted are {', '.join(rule['values'])}, separated by commas{note}"
    if kind == "int":
        yield from _number(rule, value)


def _number(rule: Mapping[str, Any], value: str) -> Iterator[str]:
    if not value.isascii() or not value.isdigit():
        yield "needs a whole number"
    elif not rule["min"] <= int(value) <= rule["max"]:
        yield f"needs a number from {rule['min']} to {rule['max']}"
    elif rule.get("power_of_two") and int(value) & (int(value) - 1):
        yield "needs a power of two"
