# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. The program that the engine's own interpreter runs, in a directory of its own: request.json in, answer.json out.

Only the parser is asked. What the engine does with parsed arguments looks at the model, the devices and the network.
Standard library only, and nothing of ours: the engine's interpreter has neither Ansible nor this collection.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import difflib
import importlib
import json
import logging
import os
import re
import resource
import sys
from collections.abc import Iterator, Sequence
from importlib import metadata
from typing import Any, NoReturn, Optional

REQUEST, ANSWER = "request.json", "answer.json"
_CLONE_NEWNET = 0x40000000
_MERGERS = ("sglang.srt.utils.server_args_config_parser", "sglang.srt.server_args_config_parser")
_SECRET = re.compile(r"key|token|secret|passw|credential|auth", re.IGNORECASE)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_LINES, _WIDTH = 50, 2000


class RefusedError(Exception):
    """The parser does not take it; the message is its own."""


class EndedError(RefusedError):
    """The parser takes it and ends the engine."""


class Parser(argparse.ArgumentParser):
    """The engine's parser as it stands, except that it neither prints nor ends the process."""

    def error(self, message: str) -> NoReturn:
        """Raise instead of exit status 2."""
        raise RefusedError(message)

    def exit(self, status: int = 0, message: Optional[str] = None) -> NoReturn:
        """Raise: a server that only prints its help does not serve."""
        raise EndedError(f"ends the engine with exit status {status} before it serves" + (f": {message}" if message else ""))

    def print_help(self, file: Any = None) -> None:
        """Not here."""


class Notes(logging.Handler):
    """What the parser says aside, such as a flag that is to go."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep each line once."""
        line = _line(_COLOUR.sub("", record.getMessage()))
        if line not in self.lines and len(self.lines) < _LINES:
            self.lines.append(line)


def main(directory: str) -> None:
    """Answer the request that lies in ``directory``; never returns, because exit handlers of the engine may hang."""
    _keep_to_ourselves(directory)
    answer: dict[str, Any]
    try:
        with open(os.path.join(directory, REQUEST), encoding="utf-8") as file:
            arguments = [str(word) for word in json.load(file)["arguments"]]
        answer = judge(engine_parser(), arguments)
    except BaseException as error:  # also SystemExit: whatever the engine raises is the answer
        answer = {"error": _line(f"{type(error).__name__}: {error}")}
    answer["version"] = _version()
    path = os.path.join(directory, ANSWER)
    with open(path + ".part", "w", encoding="utf-8") as file:
        json.dump(answer, file)
    os.replace(path + ".part", path)
    os._exit(0)


def _keep_to_ourselves(directory: str) -> None:
    """No network, no core file, and no module out of our own directory."""
    sys.argv = ["sglang"]
    sys.path[:] = [path for path in sys.path if path and os.path.realpath(path) != os.path.realpath(directory)]
    os.chdir(directory)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).unshare(_CLONE_NEWNET)  # only root may; everybody else relies on the engine's own offline mode


def engine_parser() -> Parser:
    """The parser as the engine's own entry points build it, plugins included."""
    try:
        load_plugins = importlib.import_module("sglang.srt.plugins").load_plugins
    except ImportError:  # releases that have none, or that do not import at all, which the next line tells better
        pass
    else:
        load_plugins()
    parser = Parser(prog="sglang serve")
    importlib.import_module("sglang.srt.server_args").ServerArgs.add_cli_args(parser)
    return parser


def judge(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> dict[str, Any]:
    """What the parser says: ``accepted``, ``problems``, ``abbreviations``, ``notes``."""
    notes = Notes()
    logging.getLogger().addHandler(notes)
    try:
        words = _with_config_file(parser, list(arguments))
        parser.parse_args(words)
    except (Exception, SystemExit) as error:  # types and actions of the engine raise what they like
        problems = _problems(parser, words, error) if isinstance(error, RefusedError) else [_line(f"{type(error).__name__}: {error}")]
        return {"accepted": False, "problems": problems[:_LINES], "abbreviations": [], "notes": []}
    finally:
        logging.getLogger().removeHandler(notes)
    return {"accepted": True, "problems": [], "abbreviations": _abbreviations(parser, arguments)[:_LINES], "notes": notes.lines}


def _with_config_file(parser: argparse.ArgumentParser, arguments: list[str]) -> list[str]:
    """The arguments with those of --config among them, merged by the engine's own code."""
    if "--config" not in arguments:
        return arguments
    for name in _MERGERS:
        try:
            merger = importlib.import_module(name).ConfigArgumentMerger(parser)
        except ImportError:
            continue
        return [str(word) for word in merger.merge_config_with_args(arguments)]
    return arguments


def _problems(parser: argparse.ArgumentParser, words: Sequence[str], whole: RefusedError) -> list[str]:
    """One line per flag that is refused: argparse itself ends at the first."""
    required = [action for action in parser._actions if action.required]
    lines: list[str] = []
    good: list[str] = []
    for action in required:
        action.required = False
    try:
        for group in _groups(parser, words):
            problem = _problem(parser, group)
            if problem is None:
                good.extend(group)
            elif problem not in lines:
                lines.append(problem)
    finally:
        for action in required:
            action.required = True
    try:
        parser.parse_args(good)
    except (Exception, SystemExit) as error:
        lines.append(_line(str(error)))
    return lines or [_line(str(whole))]


def _problem(parser: argparse.ArgumentParser, group: list[str]) -> Optional[str]:
    """What is wrong with one flag and its values, null when nothing is. Values of an unknown flag are not repeated: it may be a secret."""
    try:
        _namespace, extras = parser.parse_known_args(group)
    except (Exception, SystemExit) as error:
        own = str(error) if isinstance(error, RefusedError) else f"{type(error).__name__}: {error}"
        names_flag = isinstance(error, RefusedError) and not isinstance(error, EndedError)
        return _line(own if names_flag else f"argument {group[0].partition('=')[0]}: {own}")
    if not extras:
        return None
    name = group[0].partition("=")[0]
    if extras[0] != group[0]:
        values = "its further values" if _SECRET.search(name) else " ".join(extras)
        return _line(f"unrecognized arguments: {values} (after {name})")
    if not name.startswith("-"):
        return _line(f"unrecognized arguments: {' '.join(extras)}")
    close = difflib.get_close_matches(name, _spellings(parser), n=3, cutoff=0.7)
    return _line(f"unrecognized arguments: {name}" + (f" (close to it: {', '.join(close)})" if close else ""))


def _groups(parser: argparse.ArgumentParser, words: Sequence[str]) -> Iterator[list[str]]:
    """Each flag with the values behind it."""
    group: list[str] = []
    for word in words:
        if group and (re.match(r"--[A-Za-z]", word) or word in _spellings(parser)):
            yield group
            group = []
        group.append(word)
    if group:
        yield group


def _abbreviations(parser: argparse.ArgumentParser, words: Sequence[str]) -> list[str]:
    """Flags that are not written in full; a release that adds a flag with the same beginning refuses them."""
    spellings = _spellings(parser)
    found = []
    for word in words:
        name = word.partition("=")[0]
        meant = [full for full in spellings if full.startswith(name)] if re.match(r"--[A-Za-z]", name) and name not in spellings else []
        if meant:
            found.append(_line(f"{name} is read as {' or '.join(meant)}"))
    return found


def _spellings(parser: argparse.ArgumentParser) -> list[str]:
    return [spelling for action in parser._actions for spelling in action.option_strings]


def _version() -> Optional[str]:
    try:
        return metadata.version("sglang")
    except Exception:  # not installed as a package: the module may know
        version = getattr(sys.modules.get("sglang"), "__version__", None)
        return str(version)[:100] if version else None


def _line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _WIDTH else line[: _WIDTH - 3] + "..."


if __name__ == "__main__":
    main(os.path.dirname(os.path.abspath(__file__)))
