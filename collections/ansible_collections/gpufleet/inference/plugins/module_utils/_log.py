# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. The server's log: any size, any bytes, carriage-return bars; only the lines of the current incarnation."""

from __future__ import annotations

import ast
import functools
import os
import re
import stat
import time
from collections.abc import Sequence
from typing import Any, BinaryIO, Optional

from ansible_collections.gpufleet.inference.plugins.module_utils import _bounded, _patterns, _redact

HEAD_BYTES = 1 << 20
TAIL_BYTES = 4 << 20
_PROBE_BYTES = 64 << 10
_TAIL_LINES = 40
_SLACK_S = 2.0

_LINE = 16384
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
# What a request says is nobody's word on the server, however much it looks like a log line.
_ECHO = re.compile(r"((?:Receive|Finish): obj=)[^\r\n]*")
_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_ENDS = re.compile(r"[\r\n]+|(?=\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)")
_TIME = re.compile(r"^\W{0,2}(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(?:[.,]\d+)?((?: [A-Z_]+\d+)*)")
_BAR = re.compile(r"^\s*(?P<kind>[A-Za-z][^%|]*?)(?: \([^)]*\))?:\s+(?P<pct>\d{1,3})%[^|]*\|(?:[^|]*\|)?\s*(?P<done>\d+)/(?P<total>\d+)\b")
_ARGS = "server_args="
# Bars, lines of a rank, of the HTTP server and about an end do not come before a run's arguments.
_NOT_FIRST = re.compile(rb"\d%[^|]*\||^\[[^\]]* [A-Z_]+\d+\]|\] INFO: |SIG[A-Z]{3}|[Ss]hut|exit", re.MULTILINE)
_ARGS_LINE = re.compile(rb"^\[[^\]\n]*\] server_args=", re.MULTILINE)
_BEGIN = re.compile(rb"\] server_args=(?:ServerArgs\(|\{)")
_ARG_KEYS = (
    "model_path",
    "served_model_name",
    "port",
    "tp_size",
    "dp_size",
    "pp_size",
    "ep_size",
    "context_length",
    "mem_fraction_static",
    "attention_backend",
    "prefill_attention_backend",
    "decode_attention_backend",
    "moe_runner_backend",
    "disable_custom_all_reduce",
    "num_continuous_decode_steps",
    "disable_cuda_graph",
    "watchdog_timeout",
    "soft_watchdog_timeout",
    "dist_timeout",
    "quantization",
    "kv_cache_dtype",
    "enable_metrics",
)


def split(data: bytes) -> list[str]:
    """Lines as text: bars are cut at their carriage returns, what is glued to a bar stands alone, colours and empty lines are gone."""
    text = _CONTROL.sub("", _COLOUR.sub("", data.decode("utf-8", "replace")))
    if ": obj=" in text:
        text = _ECHO.sub(r"\1", text)
    return [line for line in _ENDS.split(text) if line.strip()]


def line_time(line: str) -> tuple[Optional[float], Optional[str]]:
    """Epoch and rank prefix (``TP0``, ``DP1 TP3``) of a log line; the time is the server's local time."""
    match = _TIME.match(line)
    if match is None:
        return None, None
    moment = _epoch(match.group(1).replace("T", " "))
    return moment, None if moment is None else match.group(2).strip() or None


@functools.lru_cache(maxsize=4096)
def _epoch(text: str) -> Optional[float]:
    try:
        return time.mktime(time.strptime(text, "%Y-%m-%d %H:%M:%S"))
    except (ValueError, OverflowError):
        return None


def parse_bar(line: str) -> Optional[dict[str, Any]]:
    """A tqdm bar: what it counts, how far it is."""
    match = _BAR.match(line[:400])
    if match is None:
        return None
    done, total = int(match.group("done")), int(match.group("total"))
    return {"kind": match.group("kind").strip(), "done": done, "total": total, "pct": int(match.group("pct"))}


def parse_server_args(line: str) -> dict[str, Any]:
    """Chosen settings of a ``server_args=`` line, printed as a dict or as ``ServerArgs(...)``."""
    text = line[line.index(_ARGS) + len(_ARGS) :][: 4 * _LINE].strip()
    result: dict[str, Any] = {}
    for key in _ARG_KEYS:
        match = re.search(rf"""(?:'{key}': |\b{key}=)('(?:[^'\\]|\\.)*'|"[^"]*"|\[[^\]]*\]|[^,)}}]+)""", text)
        if match:
            try:
                result[key] = ast.literal_eval(match.group(1).strip())
            except (ValueError, SyntaxError):
                result[key] = match.group(1).strip()
    return result


def start_offset(file: BinaryIO, size: int, started: Optional[float]) -> int:
    """Offset of the incarnation's first line: the first timed line not older than ``started``, found by bisection.

    A quick restart leaves the last lines of the run before within the slack: they are cut off where a fresh run can not have
    written them. Without ``started``: the last ``server_args=`` line within the tail, else the start of the file.
    """
    if started is None:
        return _last_args(file, size)
    begin = _offset_by_time(file, size, started)
    file.seek(begin)
    data = file.read(HEAD_BYTES)
    arguments = [match.start() for match in _ARGS_LINE.finditer(data)]
    offset = cut = 0
    for raw in data[: arguments[-1] if arguments else _PROBE_BYTES].splitlines(keepends=True):
        offset += len(raw)
        moment = line_time(_first_line(raw))[0]
        if _NOT_FIRST.search(raw) if arguments else moment is not None and moment < int(started):
            cut = offset
    return begin + cut


def _offset_by_time(file: BinaryIO, size: int, started: float) -> int:
    low, high = 0, size
    while high - low > _PROBE_BYTES:
        middle = (low + high) // 2
        moment = _first_time(file, middle, high)
        if moment is not None and moment >= started - _SLACK_S:
            high = middle
        else:
            low = middle
    # The first line that is young enough, or else what follows the last old one.
    file.seek(low)
    offset = low
    after_old = low
    for raw in file.read(high - low + 2 * _PROBE_BYTES).splitlines(keepends=True):
        moment = line_time(_first_line(raw))[0]
        if moment is not None:
            if moment >= started - _SLACK_S:
                return after_old
            after_old = offset + len(raw)
        offset += len(raw)
    return after_old


def _first_line(raw: bytes) -> str:
    lines = split(raw[:4096])
    return lines[0] if lines else ""


def _first_time(file: BinaryIO, offset: int, end: int) -> Optional[float]:
    file.seek(offset)
    for line in split(file.read(min(_PROBE_BYTES, end - offset)))[1:]:
        moment = line_time(line)[0]
        if moment is not None:
            return moment
    return None


def _last_args(file: BinaryIO, size: int) -> int:
    base = max(0, size - TAIL_BYTES)
    file.seek(base)
    data = file.read(TAIL_BYTES)
    for match in reversed(list(_BEGIN.finditer(data))):
        begin = data.rfind(b"\n", 0, match.start()) + 1
        if b": obj=" not in data[begin : match.start()]:
            return base + begin
    return 0


def collect(
    path: Optional[str],
    started: Optional[float],
    now: float,
    patterns: list[dict[str, str]],
    emit: _bounded.Emit,
    known: Sequence[str] = (),
    zone: Optional[str] = None,
) -> None:
    """Child body: emits size, times, tail and bar first, then the hits, so that a slow pattern costs only the hits.

    :arg started: epoch at which the current incarnation's main process started, null when unknown.
    :arg now: epoch of this look at the log.
    :arg known: secrets; they are hidden before a line is cut, because half a secret is recognised by nobody.
    :arg zone: TZ of the server, null if it is ours.
    """
    if zone:
        os.environ["TZ"] = zone
        time.tzset()
        _epoch.cache_clear()
    if not path:
        emit({"status": "absent", "reason": "no log is known"})
        return
    emit({"path": path})
    try:
        info = os.stat(path)
    except OSError as error:
        emit({"status": "absent" if isinstance(error, FileNotFoundError) else "unavailable", "reason": f"{path}: {error.strerror}"})
        return
    if not stat.S_ISREG(info.st_mode):
        emit({"status": "unavailable", "reason": f"{path} is not a regular file"})
        return
    with open(path, "rb") as file:
        begin = start_offset(file, info.st_size, started)
        lines = _lines(file, begin, info.st_size)
    rotated = None if begin or any(_ARGS in line for line in lines) else _rotated(path, started)
    if rotated:
        lines = excerpt(**rotated) + lines
    bars = [found for line in lines if "%" in line and (found := parse_bar(line))]
    last_time = next((moment for line in reversed(lines) if (moment := line_time(line)[0]) is not None), None)
    arguments = next((line for line in lines if _ARGS in line), None)
    emit(
        {
            "status": "ok",
            "reason": None,
            "size": info.st_size,
            "mtime": round(info.st_mtime, 2),
            "read_at": round(now, 2),
            "silent_s": round(max(0.0, now - info.st_mtime), 1),
            "start_offset": begin,
            "rotated": rotated,
            "tail": [_quote(line, known) for line in lines[-_TAIL_LINES:]],
            "last_line": _quote(lines[-1], known) if lines else None,
            "last_time": last_time,
            "bar": bars[-1] if bars else None,
            "server_args": parse_server_args(arguments) if arguments else None,
        }
    )
    emit(_hits(lines, patterns, known))


def _rotated(path: str, started: Optional[float]) -> Optional[dict[str, Any]]:
    """Where the start of the incarnation lies when the log was rotated since: in the file before this one, else null."""
    before = f"{path}.1"
    try:
        info = os.stat(before)
        if not stat.S_ISREG(info.st_mode) or (started is not None and info.st_mtime < started - _SLACK_S):
            return None
        with open(before, "rb") as file:
            begin = start_offset(file, info.st_size, started)
            file.seek(begin)
            if started is None and not _BEGIN.search(file.read(_PROBE_BYTES)):
                return None
    except OSError:
        return None
    return {"path": before, "begin": begin} if begin < info.st_size else None


def excerpt(path: str, begin: int) -> list[str]:
    """The same lines again, for the evidence directory."""
    with open(path, "rb") as file:
        return _lines(file, begin, os.fstat(file.fileno()).st_size)


def _lines(file: BinaryIO, begin: int, size: int) -> list[str]:
    """Head and tail of the incarnation without overlap."""
    tail_at = max(begin, size - TAIL_BYTES)
    file.seek(begin)
    head = split(file.read(min(HEAD_BYTES, tail_at - begin)))
    file.seek(tail_at)
    return head + split(file.read(min(TAIL_BYTES, size - tail_at)))


def _quote(line: str, known: Sequence[str]) -> str:
    return _patterns.cut(_redact.text(line[:_LINE], known))


def _hits(lines: list[str], patterns: list[dict[str, str]], known: Sequence[str]) -> dict[str, Any]:
    matcher = _patterns.Matcher(patterns)
    hits: dict[str, dict[str, Any]] = {}
    ranks: dict[str, dict[str, Any]] = {}
    moment: Optional[float] = None
    for line in lines:
        own, prefix = line_time(line)
        if own is not None:
            # Lines without a time (bars, tracebacks, raw prints) are as old as the one above them, but need not be of its rank.
            moment = own
        if prefix:
            last = ranks.setdefault(prefix, {"lines": 0})
            last.update(lines=last["lines"] + 1, last_time=moment, last_line=line[:_LINE])
        for name in matcher.match(line):
            hit = _patterns.count(hits, name, line[:_LINE], moment)
            by_rank = hit.setdefault("ranks", {})
            if prefix:
                by_rank[prefix] = by_rank.get(prefix, 0) + 1
    for hit in hits.values():
        hit.update(first=_quote(hit["first"], known), last=_quote(hit["last"], known))
    for row in ranks.values():
        row["last_line"] = _quote(row["last_line"], known)[:120]
    return {"hits": hits, "bad_patterns": matcher.bad, "ranks": ranks}
