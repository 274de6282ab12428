# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The catalogue of signatures: load it with clear errors, and match it against a view.

A file is a mapping {family, signatures: [...]}; the keys of a signature are KEYS below. A user's files (`gpufleet_signatures_extra`)
come on top and replace signatures of the same id.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import pathlib
import re
from collections.abc import Iterable, Mapping
from typing import Any

import yaml
from ansible_collections.gpufleet.inference.plugins.plugin_utils import phases, policy
from ansible_collections.gpufleet.inference.plugins.plugin_utils.lines import Scanner, explodes

try:
    import jmespath
    import jmespath.exceptions

    HAS_JMESPATH = True
except ImportError:  # reported by load(), so that documentation and sanity tests work without it
    HAS_JMESPATH = False

SOURCES = ("log", "tail", "kernel", "stacks", "strace", "nccl", "smi", "http")
STATES = ("serving", "starting", "stuck", "crashed", "stopped", "degraded", "gpu_fault", "host_fault", "unknown")
ACTIONS = ("none", "wait", "restart", "reconfigure", "repair", "quarantine", "escalate")
CONFIDENCES = ("low", "medium", "high")
PROOFS = ("signature", "engine", "no_progress")
KEYS = {
    "id", "cause", "engine", "lines", "when", "state", "phase", "action", "forbid", "confidence", "stronger", "proof", "priority",
    "means", "next", "references", "examples",
}  # fmt: skip
REQUIRED = ("id", "when", "state", "action", "confidence", "means", "references", "examples")
# Lines of these sources also stand in the server's own log (a watchdog prints stacks there, NCCL its warnings).
IN_SERVER_LOG = ("log", "nccl", "stacks")


class SignatureError(ValueError):
    """A catalogue that can not be used; the text names file, signature and key."""


@dataclasses.dataclass(frozen=True)
class Signature:
    """One signature, compiled."""

    id: str
    cause: str
    when: Any
    state: str
    action: str
    confidence: str
    means: str
    phase: str | None = None
    engine: str | None = None
    forbid: tuple[str, ...] = ()
    stronger: tuple[Any, str] | None = None
    proof: str = "signature"
    priority: float = 50
    next: tuple[str, ...] = ()
    references: tuple[str, ...] = ()
    examples: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    origin: str = ""

    def matches(self, view: Mapping[str, Any]) -> bool:
        """Whether `when` holds. An expression that does not fit the types in the view does not hold."""
        if self.engine and view.get("engine") not in (self.engine, None):
            return False
        return bool(_search(self.when, view))

    def sure(self, view: Mapping[str, Any]) -> str:
        """The confidence: the stronger one where its condition holds."""
        return self.stronger[1] if self.stronger and _search(self.stronger[0], view) else self.confidence

    def evidence(self) -> list[str]:
        """Names of the view that `when` looks at, such as `hits.log.watchdog_fired` or `gpus.util_min`."""
        bare = re.sub(r"'[^']*'|`[^`]*`", "", str(self.when.expression))
        found = re.findall(r"(?<![\w.])[a-z]\w*(?:\.\w+)*\b(?!\s*\()", bare)
        return list(dict.fromkeys(found))


@dataclasses.dataclass(frozen=True)
class Catalog:
    """Signatures, compiled patterns by source, and a version that changes with the content."""

    signatures: tuple[Signature, ...]
    lines: Mapping[str, Mapping[str, re.Pattern[str]]]
    version: str

    @functools.cached_property
    def patterns(self) -> dict[str, list[dict[str, str]]]:
        """The patterns a node looks for, as the gather_diag module takes them: {log: [{name, regex}], kernel: [...]}."""
        log = {name: pattern for source in IN_SERVER_LOG for name, pattern in self.lines[source].items()}
        return {
            "log": [{"name": name, "regex": pattern.pattern} for name, pattern in log.items()],
            "kernel": [{"name": name, "regex": pattern.pattern} for name, pattern in self.lines["kernel"].items()],
        }

    @functools.cached_property
    def scanners(self) -> dict[str, Scanner]:
        """One scanner per source, and `server` for all that can stand in the server's log."""
        made = {source: Scanner(dict(patterns)) for source, patterns in self.lines.items()}
        made["server"] = Scanner({name: pattern for source in IN_SERVER_LOG for name, pattern in self.lines[source].items()})
        return made


def _search(expression: Any, view: Mapping[str, Any]) -> Any:
    try:
        return expression.search(view)
    except (jmespath.exceptions.JMESPathError, TypeError, ValueError, KeyError, AttributeError):
        return None


def load(extra_paths: Iterable[str] | None = None) -> Catalog:
    """The collection's catalogue with the files `extra_paths` on top. Raises SignatureError."""
    if not HAS_JMESPATH:
        raise SignatureError("the Python package jmespath is missing on the controller (pip install jmespath)")
    return _load(tuple(str(path) for path in extra_paths or ()))


@functools.lru_cache(maxsize=8)
def _load(extra_paths: tuple[str, ...]) -> Catalog:
    patterns: dict[str, dict[str, re.Pattern[str]]] = {source: {} for source in SOURCES}
    for name, regex in phases.patterns().items():
        patterns["log"][name] = re.compile(regex)
    for entry in phases.table()["compiling"] + phases.table()["facts"]:
        patterns["tail"][entry["name"]] = re.compile(entry["regex"])
    found: dict[str, Signature] = {}
    digest = hashlib.sha256()
    shipped = sorted((policy.DATA / "signatures").glob("*.yml"))
    for path in [*shipped, *map(pathlib.Path, extra_paths)]:
        try:
            content = path.read_text(encoding="utf-8")
            document = yaml.safe_load(content)
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            raise SignatureError(f"{path}: {error}") from error
        digest.update(content.encode())
        for signature in _file(str(path), document, patterns, overlay=path not in shipped):
            if signature.id in found and path in shipped:
                raise SignatureError(f"{path}: {signature.id}: id: used twice")
            found[signature.id] = signature
    for signature in found.values():
        for source, name in re.findall(r"\bhits\.(\w+)\.(\w+)", str(signature.when.expression)):
            if name not in patterns.get(source, {}):
                raise SignatureError(f"{signature.origin}: {signature.id}: when: hits.{source}.{name} is no named line of any signature")
    digest.update(repr(sorted(phases.patterns().items())).encode())
    return Catalog(tuple(found.values()), patterns, digest.hexdigest()[:12])


def _file(where: str, document: Any, patterns: dict[str, dict[str, re.Pattern[str]]], overlay: bool) -> list[Signature]:
    if not isinstance(document, dict) or not isinstance(document.get("signatures"), list):
        raise SignatureError(f"{where}: expected a mapping with a list `signatures`")
    unknown = set(document) - {"family", "lines", "signatures"}
    if unknown:
        raise SignatureError(f"{where}: unknown key {min(map(str, unknown))} (known: family, lines, signatures)")
    _lines(f"{where}: lines", document.get("lines"), patterns, overlay)
    return [_signature(where, entry, patterns, overlay) for entry in document["signatures"]]


def _signature(where: str, entry: Any, patterns: dict[str, dict[str, re.Pattern[str]]], overlay: bool) -> Signature:
    if not isinstance(entry, dict) or not isinstance(entry.get("id"), str):
        raise SignatureError(f"{where}: a signature without id: {str(entry)[:80]}")
    here = f"{where}: {entry['id']}"
    unknown = set(map(str, entry)) - KEYS
    if unknown:
        raise SignatureError(f"{here}: unknown key {min(unknown)} (known: {', '.join(sorted(KEYS))})")
    _check(here, entry)
    _lines(f"{here}: lines", entry.get("lines"), patterns, overlay)
    when = _compile(f"{here}: when", entry["when"])
    stronger = entry.get("stronger")
    if stronger is not None:
        if not isinstance(stronger, dict) or set(stronger) != {"when", "confidence"} or stronger["confidence"] not in CONFIDENCES:
            raise SignatureError(f"{here}: stronger: expected {{when, confidence}}")
        stronger = (_compile(f"{here}: stronger.when", stronger["when"]), stronger["confidence"])
    return Signature(
        id=entry["id"],
        cause=str(entry.get("cause", entry["id"])),
        when=when,
        state=entry["state"],
        action=entry["action"],
        confidence=entry["confidence"],
        means=str(entry["means"]),
        phase=entry.get("phase"),
        engine=entry.get("engine"),
        forbid=tuple(entry.get("forbid", ())),
        stronger=stronger,
        proof=entry.get("proof", "signature"),
        priority=float(entry.get("priority", 50)),
        next=tuple(map(str, entry.get("next", ()))),
        references=tuple(map(str, entry["references"])),
        examples=entry["examples"],
        origin=where,
    )


def _check(here: str, entry: Mapping[str, Any]) -> None:
    for key in REQUIRED:
        if not entry.get(key):
            raise SignatureError(f"{here}: {key}: missing")
    for key, allowed in (("state", STATES), ("action", ACTIONS), ("confidence", CONFIDENCES), ("proof", PROOFS), ("phase", phases.PHASES)):
        if entry.get(key) is not None and entry[key] not in allowed:
            raise SignatureError(f"{here}: {key}: {entry[key]!r} is none of {', '.join(allowed)}")
    for key in ("forbid", "next", "references"):
        if not isinstance(entry.get(key, []), list):
            raise SignatureError(f"{here}: {key}: expected a list")
    for action in entry.get("forbid", []):
        if action not in ACTIONS:
            raise SignatureError(f"{here}: forbid: {action!r} is none of {', '.join(ACTIONS)}")
    if not isinstance(entry.get("priority", 50), (int, float)):
        raise SignatureError(f"{here}: priority: expected a number, found {entry['priority']!r}")


def _lines(here: str, entry: Any, patterns: dict[str, dict[str, re.Pattern[str]]], overlay: bool) -> None:
    if entry is None:
        return
    if not isinstance(entry, dict):
        raise SignatureError(f"{here}: expected a mapping of sources")
    for source, named in entry.items():
        if source not in SOURCES:
            raise SignatureError(f"{here}: unknown source {source} (known: {', '.join(SOURCES)})")
        if not isinstance(named, dict):
            raise SignatureError(f"{here}.{source}: expected a mapping of names to regular expressions")
        for name, regex in named.items():
            if not isinstance(regex, str) or not re.fullmatch(r"[a-z][a-z0-9_]*", str(name)):
                raise SignatureError(f"{here}.{source}.{name}: expected a lower-case name and a regular expression")
            try:
                compiled = re.compile(regex)
                dangerous = explodes(regex)
            except (re.error, RecursionError, OverflowError) as error:
                raise SignatureError(f"{here}.{source}.{name}: bad regular expression: {error}") from error
            if dangerous:
                raise SignatureError(f"{here}.{source}.{name}: an unbounded repeat inside another can take for ever")
            known = patterns[source].get(name)
            if known is not None and known.pattern != regex and not overlay:
                raise SignatureError(f"{here}.{source}.{name}: defined elsewhere with another regular expression")
            patterns[source][name] = compiled


def _compile(here: str, expression: Any) -> Any:
    if not isinstance(expression, str):
        raise SignatureError(f"{here}: expected a JMESPath expression, found {type(expression).__name__}")
    if re.search(r"!\s*\w+\.", expression):
        raise SignatureError(f"{here}: JMESPath reads !a.b as (!a).b; write !(a.b)")
    try:
        return jmespath.compile(expression)
    except jmespath.exceptions.JMESPathError as error:
        raise SignatureError(f"{here}: bad JMESPath: {str(error).splitlines()[0]}") from error
