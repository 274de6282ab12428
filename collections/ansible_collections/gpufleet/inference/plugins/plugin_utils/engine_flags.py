# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which command line flags an SGLang release takes, from C(data/engine_flags.yml).

Rule for a release without a table of its own: the nearest table that is not newer is used.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from .profiles import DeploymentError, read_yaml


@dataclass(frozen=True)
class Flag:
    """One flag in one release. V(kind) is switch, onoff, str, int, float or json; V(nargs) is empty, +, * or ?."""

    name: str
    kind: str
    nargs: str = ""
    values: list[Any] = field(default_factory=list)
    also: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Table:
    """The flags of one release: V(flags) by every accepted spelling, V(gone) by spelling with the flag to use now."""

    release: str
    flags: dict[str, Flag]
    gone: dict[str, str]


@cache
def _data() -> dict[str, Any]:
    return read_yaml("engine_flags.yml")


def version_key(version: str) -> tuple[int, ...]:
    """Returns a release such as 0.5.12.post1 as numbers to compare; raises DeploymentError when it is none."""
    match = re.fullmatch(r"v?(\d+)\.(\d+)(?:\.(\d+))?(?:\.?(post|rc|a|b|dev)(\d+))?(?:\+[\w.]+)?", str(version))
    if not match:
        raise DeploymentError(f"{version!r} is no SGLang release such as 0.5.23")
    major, minor, patch, stage, number = match.groups()
    after = int(number) if stage == "post" else -1 if stage else 0
    return int(major), int(minor), int(patch or 0), after


def floor() -> dict[str, Any]:
    """Returns the oldest release that can be used: version, reasons, sources."""
    result: dict[str, Any] = _data()["floor"]
    return result


def check_floor(version: str) -> None:
    """Raises DeploymentError when the release is older than the floor."""
    if version_key(version) < version_key(floor()["version"]):
        raise DeploymentError(f"SGLang {version} is older than the floor {floor()['version']}: {'; '.join(floor()['reasons'])}")


def table(version: str) -> Table:
    """Returns the nearest table that is not newer than the release, for an older one the oldest."""
    wanted = version_key(version)
    releases: list[str] = _data()["releases"]
    return _table(max((r for r in releases if version_key(r) <= wanted), key=version_key, default=releases[0]))


@cache
def _table(release: str) -> Table:
    flags: dict[str, Flag] = {}
    gone: dict[str, str] = {}
    for name, rows in _data()["flags"].items():
        current: Any = None
        spellings = {name}
        for since in _data()["releases"]:
            current = rows.get(since, current)
            if isinstance(current, dict):
                spellings.update(current.get("also", []))
            if since == release:
                break
        if isinstance(current, dict) and "gone" in current:
            gone.update(dict.fromkeys(spellings, current["gone"]))
        elif current is not None:
            entry: dict[str, Any] = {"kind": current} if isinstance(current, str) else current
            kind = entry["kind"].rstrip("+*?")
            flag = Flag(name, kind, entry["kind"][len(kind) :], entry.get("values", []), entry.get("also", []))
            flags.update(dict.fromkeys([name, *flag.also], flag))
            if kind == "onoff":
                flags[f"--no-{name[2:]}"] = flag
    return Table(release, flags, gone)


def known(flag: str, version: str) -> Flag | None:
    """Returns what the release knows about a flag in full spelling, or null."""
    return table(version).flags.get(flag)


def check(argv: Sequence[str], version: str) -> list[str]:
    """Returns what the release would not accept in a list of flags and values, one sentence each, empty when all is well."""
    found = table(version)
    errors = []
    for word, values in _groups(argv):
        flag = found.flags.get(word)
        if flag is None:
            errors.append(f"{word or repr(values[0])} {_unknown(word, found, version)}")
        else:
            errors.extend(f"{word}: {problem}" for problem in _problems(flag, values, version))
    return errors


def parse(argv: Sequence[str], version: str) -> dict[str, Any]:
    """Returns the flags of any command line as {full name without dashes: value}; what the release does not know is left out.

    Reads abbreviations as argparse does. A switch is true; several values are a list.
    """
    found = table(version)
    result: dict[str, Any] = {}
    for word, values in _groups(argv):
        spellings = [word] if word in found.flags else [s for s in found.flags if word and s.startswith(word)]
        names = {found.flags[s].name for s in spellings}
        if len(names) != 1:
            continue
        flag = found.flags[names.pop()]
        if flag.kind in ("switch", "onoff"):
            result[flag.name[2:]] = not word.startswith("--no-") or flag.kind == "switch"
        elif values:
            typed = [_typed(flag, value) for value in values]
            result[flag.name[2:]] = typed if flag.nargs in ("+", "*") else typed[0]
    return result


def _groups(argv: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Yields each flag with its values; values before the first flag come under an empty name."""
    name = ""
    values: list[str] = []
    for word in argv:
        if re.match(r"--[a-zA-Z]", word):
            if name or values:
                yield name, values
            name, equals, value = word.partition("=")
            values = [value] if equals else []
        else:
            values.append(word)
    if name or values:
        yield name, values


def _unknown(word: str, found: Table, version: str) -> str:
    if not word:
        return "belongs to no flag"
    by = "" if found.release == version else f" (judged by the flags of {found.release})"
    if word in found.gone:
        hint = f"; use {found.gone[word]}" if found.gone[word] else ""
        return f"is no longer a flag of SGLang {version}{by}{hint}"
    close = [s for s in found.flags if s.startswith(word)][:3] or difflib.get_close_matches(word, list(found.flags), n=3, cutoff=0.7)
    return f"is not a flag of SGLang {version}{by}" + (f"; close to it: {', '.join(close)}" if close else "")


def _problems(flag: Flag, values: list[str], version: str) -> Iterator[str]:
    if flag.kind in ("switch", "onoff"):
        if values:
            yield f"takes no value, found {' '.join(values)!r}"
        return
    if not values and flag.nargs not in ("*", "?"):
        yield "needs a value"
    if len(values) > 1 and flag.nargs in ("", "?"):
        yield f"takes one value, found {' '.join(values)!r}"
        return
    for value in values:
        try:
            typed = _typed(flag, value, strict=True)
        except ValueError:
            yield f"needs {_KINDS[flag.kind]}, found {value!r}"
            continue
        low, high = _data()["limits"].get(flag.name, (0, None))
        if isinstance(typed, (int, float)) and not ((low is None or typed >= low) and (high is None or typed <= high)):
            yield f"expected {_span(low, high)}, found {value}"
        if flag.values and typed not in flag.values:
            yield f"{value!r} is not accepted by SGLang {version}; accepted are {', '.join(map(str, flag.values))}"


def _span(low: int | None, high: int | None) -> str:
    return f"a number from {low} to {high}" if high is not None else f"{low} or more"


_KINDS = {"int": "a whole number", "float": "a number", "json": "JSON", "str": "text"}


def _typed(flag: Flag, value: str, strict: bool = False) -> Any:
    try:
        if flag.kind == "int":
            return int(value)
        if flag.kind == "float":
            return float(value)
        if flag.kind == "json":
            json.loads(value)
    except ValueError:
        if strict:
            raise
    return value
