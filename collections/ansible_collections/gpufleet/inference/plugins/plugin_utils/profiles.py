# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Profiles: named sets of engine flags and environment per GPU class, read from C(data/profiles.yml)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

DATA = Path(__file__).parent / "data"
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class DeploymentError(ValueError):
    """A wish that can not be deployed. The text is one message for a person."""


@dataclass(frozen=True)
class Profile:
    """One named configuration. V(flags) maps a flag without dashes to its value, V(True) for a switch."""

    name: str
    gpu_class: str
    purpose: str
    cost: str
    engine: dict[str, str]
    flags: dict[str, Any]
    environment: dict[str, str]
    source: str


@dataclass(frozen=True)
class GpuClass:
    """What one class of GPUs gets by default, and what the engine does there whatever it is told."""

    name: str
    description: str
    default: str
    ladder: list[str]
    engine_chooses: dict[str, Any]
    engine_overrides: dict[str, Any]
    engine_chooses_by_model: list[dict[str, Any]]
    refused: list[dict[str, Any]]
    without_gpus: bool


@dataclass(frozen=True)
class Profiles:
    """The whole file."""

    base: dict[str, Any]
    defaults: dict[str, Any]
    not_a_difference: list[str]
    flag_defaults: dict[str, Any]
    environment_that_matters: list[str]
    environment_defaults: dict[str, str]
    gpu_classes: dict[str, GpuClass]
    profiles: dict[str, Profile]

    def profile(self, name: str) -> Profile:
        """Returns the profile; raises DeploymentError that lists the names when there is none of that name."""
        if name not in self.profiles:
            raise DeploymentError(f"unknown profile {name!r}; known are {', '.join(sorted(self.profiles))}")
        return self.profiles[name]

    def gpu_class(self, name: object) -> GpuClass:
        """Returns the GPU class; raises DeploymentError that lists the names when there is none of that name."""
        if name not in self.gpu_classes:
            raise DeploymentError(f"unknown GPU class {name!r}; known are {', '.join(sorted(self.gpu_classes))}")
        return self.gpu_classes[str(name)]

    def of_class(self, names: list[str], gpu_class: str) -> list[str]:
        """Returns the names; raises DeploymentError when a profile is unknown or meant for another GPU class."""
        for name in names:
            wanted = self.profile(name).gpu_class
            if wanted != gpu_class:
                fitting = ", ".join(sorted(n for n, p in self.profiles.items() if p.gpu_class == gpu_class))
                raise DeploymentError(f"profile {name!r} is for GPU class {wanted}, this host is {gpu_class}; for it there are {fitting}")
        return names


_TOP = {
    "base": dict,
    "not_a_difference": list,
    "flag_defaults": dict,
    "environment_that_matters": list,
    "environment_defaults": dict,
    "gpu_classes": dict,
    "profiles": dict,
}
_CLASS = {"description": str, "default": str, "ladder": list}
_CLASS_OPTIONAL = {"engine_chooses": dict, "engine_overrides": dict, "engine_chooses_by_model": list, "refused": list, "without_gpus": bool}
_PROFILE = {"gpu_class": str, "purpose": str, "cost": str, "engine": dict, "flags": dict, "environment": dict, "source": str}


def read_yaml(name: str) -> dict[str, Any]:
    """Returns one file of the data directory as a dictionary; raises OSError and yaml.YAMLError."""
    with (DATA / name).open(encoding="utf-8") as stream:
        data = yaml.load(stream, Loader=_LOADER)  # noqa: S506 a safe loader, in C where there is one
    if not isinstance(data, dict):
        raise DeploymentError(f"{name}: expected a mapping")
    return data


@cache
def load() -> Profiles:
    """Returns the profiles of the collection, read once."""
    return parse(read_yaml("profiles.yml"))


def parse(data: dict[str, Any]) -> Profiles:
    """Returns the checked profiles; raises DeploymentError that names the place of the first thing wrong."""
    _fields(data, {"schema": int, **_TOP}, {}, "profiles")
    if data["schema"] != 1:
        raise DeploymentError(f"profiles: schema is {data['schema']}, this release reads 1")
    _fields(data["base"], {"flags": dict, "defaults": dict}, {}, "base")
    classes = {}
    for name, entry in data["gpu_classes"].items():
        _fields(entry, _CLASS, _CLASS_OPTIONAL, f"gpu_classes.{name}")
        classes[name] = GpuClass(name=name, **{key: entry.get(key, kind()) for key, kind in {**_CLASS, **_CLASS_OPTIONAL}.items()})
    profiles = {}
    for name, entry in data["profiles"].items():
        where = f"profiles.{name}"
        _fields(entry, _PROFILE, {}, where)
        _fields(entry["engine"], {"min": str}, {"max": str}, f"{where}.engine")
        for variable, value in entry["environment"].items():
            if not isinstance(value, str):
                raise DeploymentError(f"{where}.environment.{variable}: expected text in quotes, found {value!r}")
        if entry["gpu_class"] not in classes:
            raise DeploymentError(f"{where}.gpu_class: {entry['gpu_class']!r} is not in gpu_classes")
        profiles[name] = Profile(name=name, **entry)
    found = Profiles(
        base=data["base"]["flags"],
        defaults=data["base"]["defaults"],
        not_a_difference=data["not_a_difference"],
        flag_defaults=data["flag_defaults"],
        environment_that_matters=data["environment_that_matters"],
        environment_defaults=data["environment_defaults"],
        gpu_classes=classes,
        profiles=profiles,
    )
    for gpu_class in classes.values():
        found.of_class([gpu_class.default, *gpu_class.ladder], gpu_class.name)
    return found


def _fields(entry: Any, required: Mapping[str, type], optional: Mapping[str, type], where: str) -> None:
    if not isinstance(entry, dict):
        raise DeploymentError(f"{where}: expected a mapping, found {entry!r}")
    known = {**required, **optional}
    for key, value in entry.items():
        if key not in known:
            raise DeploymentError(f"{where}: unknown key {key!r}; known are {', '.join(sorted(known))}")
        if not isinstance(value, known[key]):
            raise DeploymentError(f"{where}.{key}: expected {known[key].__name__}, found {value!r}")
    for key in required:
        if key not in entry:
            raise DeploymentError(f"{where}: {key} is missing")
