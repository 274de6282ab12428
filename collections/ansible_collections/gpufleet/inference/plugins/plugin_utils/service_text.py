# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write a command line and an environment so that a service manager reads them back unchanged.

None of the files is read by a shell, and no two managers quote alike: a word that C(shlex.quote) made safe reaches the server
changed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_PLAIN = re.compile(r"[A-Za-z0-9_@+=:,./-]+\Z")
_ESCAPES = {"\\": "\\\\", '"': '\\"', "%": "%%", "$": "$$", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
# What configparser takes for the start of a comment, also within quotes.
_COMMENT = re.compile(r"(?<=\s)(?=[;#])")
# Some of these would be read as a pattern or a variable, and a value loses the blanks around it.
_SYSTEMD_BAD_PATH = re.compile(r"[*?\[\"$\\\x00-\x1f\x7f]|\A\s|\s\Z")
# supervisor expands some paths twice and others once.
_SUPERVISOR_BAD_PATH = re.compile(r"[%\"\\\x00-\x1f\x7f]|\A\s|\s\Z|\s[;#]")


def systemd_command(words: Sequence[str]) -> str:
    """The value of C(ExecStart=)."""
    return " ".join(_systemd_word(word) for word in words)


def systemd_environment(variables: Mapping[str, str]) -> list[str]:
    """The lines of a file for C(EnvironmentFile=), which knows neither variables nor specifiers."""
    return [f'{name}="{_backslash(value)}"' for name, value in sorted(variables.items())]


def supervisor_command(words: Sequence[str]) -> str:
    """The value of C(command=): the words of a shell, in which configparser must see no comment."""
    return " ".join(_shell_word(word) for word in words).replace("%", "%%")


def supervisor_environment(variables: Mapping[str, str]) -> list[str]:
    """The pairs of C(environment=), which takes what is between two marks as it is."""
    marks = {name: "'" if '"' in value else '"' for name, value in variables.items()}
    return [f"{name}={marks[name]}{value}{marks[name]}".replace("%", "%%") for name, value in sorted(variables.items())]


def _systemd_word(word: str) -> str:
    if _PLAIN.match(word):
        return word
    text = "".join(_ESCAPES.get(letter, letter) for letter in word)
    return '"' + _CONTROL.sub(lambda match: f"\\x{ord(match.group()):02x}", text) + '"'


def _shell_word(word: str) -> str:
    if _PLAIN.match(word):
        return word
    return _COMMENT.sub("''", "'" + word.replace("'", "'\\''") + "'")


def _backslash(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"')


@dataclass(frozen=True)
class _Manager:
    command: Callable[[Sequence[str]], str]
    environment: Callable[[Mapping[str, str]], list[str]]
    bad_word: Callable[[str], str | None]
    bad_value: Callable[[str], str | None]
    bad_path: re.Pattern[str]


def _systemd_bad_word(word: str) -> str | None:
    return "a null character" if "\0" in word else None


def _systemd_bad_value(value: str) -> str | None:
    return "a control character" if _CONTROL.search(value) else None


def _supervisor_bad_word(word: str) -> str | None:
    return "a line break or another control character" if re.search(r"[\r\n]", word) or _CONTROL.search(word) else None


def _supervisor_bad_value(value: str) -> str | None:
    if "\n" in value or "\r" in value or _CONTROL.search(value):
        return "a line break or another control character"
    if value[:1] in ("'", '"') or value[-1:] in ("'", '"'):
        return "a quotation mark at its begin or end"
    if "'" in value and '"' in value:
        return "both kinds of quotation marks"
    return "a blank before ; or #" if _COMMENT.search(value) else None


MANAGERS = {
    "systemd": _Manager(systemd_command, systemd_environment, _systemd_bad_word, _systemd_bad_value, _SYSTEMD_BAD_PATH),
    "supervisor": _Manager(supervisor_command, supervisor_environment, _supervisor_bad_word, _supervisor_bad_value, _SUPERVISOR_BAD_PATH),
}


def definition(manager: str, command: Sequence[Any], environment: Mapping[str, Any], paths: Mapping[str, Any]) -> dict[str, Any]:
    """Everything that a service definition holds, quoted for its manager.

    :returns: C(command), C(environment) (list of lines or pairs), C(paths) by their names, and C(misfits): one sentence for each
        value that the manager can not hold.
    """
    kind = MANAGERS[manager]
    words = [str(word) for word in command]
    paths = {name: str(path) for name, path in paths.items()}
    variables = {str(name): str(value) for name, value in environment.items()}
    misfits = [f"the command line has {why} in {word!r}" for word in words if (why := kind.bad_word(word))]
    if manager == "systemd" and "$" in words[0]:
        misfits.append(f"the path of the program has a dollar sign: {words[0]!r}")
    misfits += [f"{name} has {why}" for name, value in sorted(variables.items()) if (why := kind.bad_value(value))]
    misfits += [f"{name} has no valid name" for name in sorted(variables) if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name)]
    misfits += [
        f"{name} has a letter that can not be written down in {path!r}" for name, path in paths.items() if kind.bad_path.search(path)
    ]
    return {
        "command": kind.command(words),
        "environment": kind.environment(variables),
        "paths": {name: path.replace("%", "%%") for name, path in paths.items()},
        "misfits": misfits,
    }
