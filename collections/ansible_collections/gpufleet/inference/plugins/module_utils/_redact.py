# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. Take secrets out of everything that leaves the node."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

MASK = "<redacted>"

_NAME = re.compile(
    r"(?:(?:^|[-_.])(?:(?:api|access|secret|private|account|encryption|signing|session)[-_]?keys?(?:[-_]?id)?|auth|token|secrets?|pass|pwd"
    r"|credentials?|authorization|cookies?)|password|passwd|passphrase)$",
    re.IGNORECASE,
)
_WORDS = (
    r"(?:api[-_]?key|hf[-_]?token|access[-_]?token|auth[-_]?token|secret[-_]?(?:access[-_]?)?key|account[-_]?key|private[-_]?key"
    r"|passw(?:or)?d|passphrase|db[-_]?pass|mysql[-_]?pwd|client[-_]?secret)"
)
# As the name of a quoted value these tell a secret, in running text they do not.
_KEYS = rf"(?:{_WORDS}|(?<![a-z0-9])(?:token|secret|authorization|cookie|set-cookie))"
_TEXT: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{6,}"), rf"\1 {MASK}"),
    (re.compile(r"(?i)\b(x-api-key|api-key|authorization|(?:set-)?cookie)\s*:\s*(?!(?:bearer|basic) )[^\s'\"][^\r\n'\"]*"), rf"\1: {MASK}"),
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL), MASK),
    (re.compile(r"\bAIza[0-9A-Za-z_-]{30,}"), MASK),
    (re.compile(r"\b(?:hf|api_org)_[A-Za-z0-9]{16,}"), MASK),
    (re.compile(r"\b(?:sk|pk|rk)-[A-Za-z0-9_-]{16,}"), MASK),
    (re.compile(r"\bnvapi-[A-Za-z0-9_-]{16,}"), MASK),
    (re.compile(r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"), MASK),
    (re.compile(r"\b(?:gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}|glpat-[A-Za-z0-9_-]{16,})"), MASK),
    (re.compile(r"\bxox[abprs]-[A-Za-z0-9-]{10,}"), MASK),
    (re.compile(r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*"), MASK),
    (re.compile(r"\b([a-z][a-z0-9+.-]{1,20}://)[^/\s@'\"]+@", re.IGNORECASE), rf"\1{MASK}@"),
    (re.compile(r"(?i)([?&](?:X-Amz-(?:Signature|Credential|Security-Token)|sig|signature|token|api_key|key)=)[^&\s'\"]+"), rf"\1{MASK}"),
    # A quote that was cut has no closing mark.
    (re.compile(rf"""(?i)({_KEYS}["']?\s*[=:,]\s*)b?(["'])(?!None\b)(?:(?!\2)[^\n])+(?:\2|$)"""), rf"\1\2{MASK}\2"),
    (re.compile(rf"""(?i)({_WORDS}(?:\s*=|:|(?<=[a-z-]) ))\s*(?!["']|None\b|<)[^\s"',;)]+"""), rf"\1{MASK}"),
)


def is_secret_name(name: str) -> bool:
    """Whether a flag or variable of this name holds a secret."""
    return _NAME.search(name) is not None


def text(value: str, known: Iterable[str] = ()) -> str:
    """A line without secrets; ``known`` are literal values found elsewhere."""
    for secret in known:
        value = value.replace(secret, MASK)
    for pattern, replacement in _TEXT:
        value = pattern.sub(replacement, value)
    return value


def argv(arguments: Sequence[str]) -> list[str]:
    """A command line without secrets, both ``--flag value`` and ``--flag=value``."""
    result: list[str] = []
    hide = False
    for argument in arguments:
        name, equals, _value = argument.partition("=")
        if hide and not argument.startswith("--"):
            result.append(MASK)
        elif argument.startswith("-") and equals and is_secret_name(name.lstrip("-")):
            result.append(f"{name}={MASK}")
        else:
            result.append(text(argument))
        hide = argument.startswith("-") and not equals and is_secret_name(argument.lstrip("-"))
    return result


def environment(variables: Mapping[str, Any]) -> dict[str, str]:
    """Environment variables without secrets."""
    return {name: MASK if is_secret_name(name) else text(str(value)) for name, value in variables.items()}


def secrets(arguments: Sequence[str], variables: Mapping[str, Any]) -> list[str]:
    """Values worth hiding wherever they turn up again (at least six characters, longest first)."""
    found = {str(value) for name, value in variables.items() if is_secret_name(name)}
    for index, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if not argument.startswith("-") or not is_secret_name(name.lstrip("-")):
            continue
        if equals:
            found.add(value)
        elif index + 1 < len(arguments):
            found.add(arguments[index + 1])
    return sorted((value for value in found if len(value) >= 6), key=len, reverse=True)


def fingerprints(arguments: Sequence[str], variables: Mapping[str, Any], salt: str) -> dict[str, str]:
    """What tells whether two secrets are the same without telling them, by the name of flag or variable."""
    found = {name: str(value) for name, value in variables.items() if is_secret_name(name)}
    for index, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if argument.startswith("-") and is_secret_name(name.lstrip("-")):
            found[name] = value if equals else next(iter(arguments[index + 1 :]), "")
    return {name: hashlib.pbkdf2_hmac("sha256", value.encode(), salt.encode(), 100_000).hex() for name, value in found.items()}


def tree(value: Any, known: Sequence[str] = ()) -> Any:
    """The same for a whole JSON document; keys that name a secret lose their string value."""
    if isinstance(value, str):
        return text(value, known)
    if isinstance(value, dict):
        return {
            key: MASK if isinstance(item, str) and item and is_secret_name(str(key)) else tree(item, known) for key, item in value.items()
        }
    if isinstance(value, list) and value and all(isinstance(item, str) for item in value):
        return [text(item, known) for item in argv(value)]
    if isinstance(value, (list, tuple)):
        return [tree(item, known) for item in value]
    return value
