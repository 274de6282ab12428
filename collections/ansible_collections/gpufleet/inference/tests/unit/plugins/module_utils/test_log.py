# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import os
import time

import pytest
from ansible_collections.gpufleet.inference.plugins.module_utils import _bounded, _log, _patterns

PATTERNS = [{"name": "begin", "regex": "Load weight begin"}, {"name": "oom", "regex": "(?i)cuda out of memory"}]


def stamp(moment):
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(moment))


def collect(path, started=None, patterns=(), timeout=10.0):
    outcome = _bounded.call(lambda emit: _log.collect(str(path), started, time.time(), list(patterns), emit), timeout)
    return {**outcome.values, "seconds": outcome.seconds, "outcome": outcome.status}


def test_bars_are_split_and_unglued(tmp_path):
    now = time.time()
    log = tmp_path / "log"
    log.write_bytes(
        b"\x1b[32m[%s TP0] Load weight begin. avail mem=94.14 GB\x1b[0m\n" % stamp(now).encode()
        + b"\rMulti-thread loading shards:   0%% Completed | 0/64 [00:00<?, ?it/s][%s TP4] Load weight begin.\n" % stamp(now).encode()
        + b"\rMulti-thread loading shards: 100% Completed | 64/64 [00:07<00:00, 9it/s] \xff\xfe"
    )
    seen = collect(log, now - 10, PATTERNS)
    assert seen["bar"] == {"kind": "Multi-thread loading shards", "done": 64, "total": 64, "pct": 100}
    assert seen["hits"]["begin"]["count"] == 2 and seen["hits"]["begin"]["ranks"] == {"TP0": 1, "TP4": 1}
    assert seen["ranks"]["TP4"]["lines"] == 1 and seen["last_time"] == int(now)
    assert seen["tail"][0].startswith("[") and seen["silent_s"] < 5


def test_other_bars():
    old = "Loading safetensors checkpoint shards:   5% Completed | 3/64 [00:00<00:06,  8.93it/s]"
    graph = "Capturing batches (bs=512 avail_mem=12.34 GB):  13%|█▎        | 7/52 [00:00<?, ?it/s]"
    assert _log.parse_bar(old)["done"] == 3
    assert _log.parse_bar(graph) == {"kind": "Capturing batches", "done": 7, "total": 52, "pct": 13}
    assert _log.parse_bar("[2026-01-29 01:13:16 TP0] Decode batch, token usage: 0.02") is None


def test_only_the_current_incarnation_counts(tmp_path):
    start = int(time.time()) - 100
    log = tmp_path / "log"
    old = [f"[{stamp(start - 5000 + number)} TP0] CUDA out of memory" for number in range(4000)]
    new = [
        "Attention backend not specified.",
        f"[{stamp(start + 8)}] server_args={{'port': 1}}",
        f"[{stamp(start + 9)} TP0] Load weight begin.",
    ]
    log.write_text("\n".join([*old, *new]) + "\n")
    seen = collect(log, start, PATTERNS)
    assert "oom" not in seen["hits"] and seen["hits"]["begin"]["count"] == 1
    assert log.read_bytes()[seen["start_offset"] :].startswith(b"Attention backend")


def test_a_quick_restart_cuts_the_last_lines_of_the_run_before(tmp_path):
    start = int(time.time()) - 100
    old = [
        f"[{stamp(start - 1)} TP0] out of memory",
        f"[{stamp(start)}] INFO:     Finished server process [1]",
        "shards: 9% Completed | 6/64",
    ]
    new = ["UserWarning: x", f"[{stamp(start)}] Use triton backend by default.", f"[{stamp(start + 1)}] server_args={{'port': 1}}"]
    log = tmp_path / "log"
    log.write_text("\n".join([*old, *new]) + "\n")
    assert collect(log, start)["tail"] == new


def test_without_a_process_the_last_server_args_line_begins(tmp_path):
    log = tmp_path / "log"
    log.write_text("[2026-01-01 00:00:00] server_args={}\nCUDA out of memory\n[2026-01-02 00:00:00] server_args={'tp_size': 8}\nlast\n")
    seen = collect(log, None, PATTERNS)
    assert seen["hits"] == {} and seen["server_args"] == {"tp_size": 8} and seen["last_line"] == "last"


def test_server_args_in_both_shapes():
    old = "[x] server_args=ServerArgs(model_path='/m', tp_size=8, attention_backend='flashinfer', mem_fraction_static=0.85, port=1)"
    new = "[x] server_args={'model_path': '/m', 'tp_size': 8, 'attention_backend': 'flashinfer', 'context_length': None, 'port': 1}"
    for line in (old, new):
        seen = _log.parse_server_args(line)
        assert (seen["attention_backend"], seen["tp_size"], seen["model_path"]) == ("flashinfer", 8, "/m")


def test_a_huge_sparse_log_costs_little(tmp_path):
    log = tmp_path / "log"
    now = time.time()
    with open(log, "wb") as file:
        file.truncate(20 << 30)
        file.seek(0, os.SEEK_END)
        file.write(f"\n[{stamp(now)} TP0] Load weight begin.\n".encode())
    seen = collect(log, now - 1, PATTERNS)
    assert seen["hits"]["begin"]["count"] == 1 and seen["seconds"] < 3


def test_a_fifo_is_not_opened(tmp_path):
    os.mkfifo(tmp_path / "log")
    assert "not a regular file" in collect(tmp_path / "log")["reason"]
    assert collect(tmp_path / "none")["status"] == "absent"


def test_a_pattern_that_explodes_costs_only_the_hits(tmp_path):
    log = tmp_path / "log"
    log.write_text("a" * 60 + "!\n")
    seen = collect(log, None, [{"name": "bad", "regex": "^(a+)+$"}], timeout=0.5)
    assert seen["outcome"] == "timeout" and seen["last_line"].startswith("aaa") and "hits" not in seen


def test_matcher_keeps_every_pattern_its_own_meaning():
    patterns = [
        {"name": "plain", "regex": "alpha"},
        {"name": "folded", "regex": "(?i)BETA"},
        {"name": "named", "regex": "(?P<x>gamma)"},
        {"name": "again", "regex": "(?P<x>delta)"},
        {"name": "broken", "regex": "("},
    ]
    matcher = _patterns.Matcher(patterns)
    assert list(matcher.bad) == ["broken"]
    assert [matcher.match(line) for line in ("alpha", "ALPHA", "beta", "gamma delta", "none")] == [
        ["plain"],
        [],
        ["folded"],
        ["named", "again"],
        [],
    ]
    assert _patterns.Matcher([{"name": "back", "regex": r"(x)\1"}]).match("xx") == ["back"]


def test_half_a_secret_does_not_get_out(tmp_path):
    log = tmp_path / "log"
    secrets = ["K3y" + "x" * 40, "T0k" + "y" * 40]
    for fill in range(240, 300, 7):
        log.write_text(f"[{stamp(time.time())} TP0] Load weight begin {'.' * fill} {secrets[0]} api_key='{secrets[1]}', port=1\n")
        outcome = _bounded.call(lambda emit: _log.collect(str(log), None, time.time(), PATTERNS, emit, known=secrets[:1]), 5)
        assert outcome.values["hits"]["begin"]["count"] == 1
        assert not any(secret[:5] in str(outcome.values) for secret in secrets)


@pytest.mark.parametrize("verb", ["Receive", "Finish"])
def test_what_a_request_says_is_no_log_line(tmp_path, verb):
    log = tmp_path / "log"
    first = f"[{stamp(time.time())}] server_args={{'tp_size': 8}}"
    now = stamp(time.time())
    words = f"[{now} TP0] Load weight begin [{now}] server_args={{'tp_size': 1}} \r shards: 9% Completed | 6/64 [x]"
    log.write_text(f"{first}\n[{stamp(time.time())}] {verb}: obj=GenerateReqInput(text={words!r})\n")
    seen = collect(log, None, PATTERNS)
    assert seen["hits"] == {} and seen["server_args"] == {"tp_size": 8} and seen["bar"] is None and seen["start_offset"] == 0


@pytest.mark.parametrize("fill", [b" (", b"a", b"5% ", b"\x1b[", b"server_args=('", b"[2026-01-01 00:00:00 "])
def test_a_hostile_line_of_megabytes_costs_little(tmp_path, fill):
    log = tmp_path / "log"
    log.write_bytes(b"x% server_args=" + fill * ((6 << 20) // len(fill)))
    assert collect(log, None, PATTERNS, timeout=10)["outcome"] == "ok"


def test_nothing_that_moves_a_terminal_is_quoted(tmp_path):
    log = tmp_path / "log"
    log.write_bytes(b"a\x1b]0;title\x07b\x9b2J\x08\x7f\x1b[31mc\n")
    assert not any(ord(character) < 32 or 127 <= ord(character) < 160 for character in collect(log)["last_line"])


def test_the_servers_own_time_zone_counts(tmp_path):
    start = int(time.time()) - 100
    log = tmp_path / "log"
    log.write_text(
        "".join(time.strftime("[%Y-%m-%d %H:%M:%S TP0] Load weight begin\n", time.gmtime(start + at - 8 * 3600)) for at in (-50, 5))
    )
    outcome = _bounded.call(lambda emit: _log.collect(str(log), start, time.time(), PATTERNS, emit, zone="XXX8"), 5)
    assert outcome.values["hits"]["begin"]["count"] == 1 and outcome.values["last_time"] == start + 5


def rotate(log):
    """What logrotate's copytruncate does."""
    log.with_name("log.1").write_bytes(log.read_bytes())
    os.truncate(log, 0)


def test_a_start_that_was_rotated_away_is_read_in_the_file_before(tmp_path):
    start = int(time.time()) - 100
    log = tmp_path / "log"
    old = [f"[{stamp(start - 60)} TP0] CUDA out of memory"]
    new = [f"[{stamp(start + 8)}] server_args={{'port': 7}}", f"[{stamp(start + 9)} TP0] Load weight begin."]
    log.write_text("\n".join([*old, *new]) + "\n")
    rotate(log)
    seen = collect(log, start, PATTERNS)
    assert (seen["size"], seen["start_offset"], seen["last_line"]) == (0, 0, new[-1])
    assert "oom" not in seen["hits"] and seen["hits"]["begin"]["count"] == 1 and seen["server_args"]["port"] == 7
    with open(log, "a") as file:
        file.write(f"[{stamp(start + 50)} TP0] Load weight begin again.\n")
    seen = collect(log, start, PATTERNS)
    assert seen["hits"]["begin"]["count"] == 2 and seen["last_line"].endswith("again.") and seen["server_args"]["port"] == 7
    assert seen["rotated"] == {"path": f"{log}.1", "begin": len(old[0]) + 1}
    assert _log.excerpt(**seen["rotated"]) == new


def test_a_run_that_began_after_the_rotation_does_not_get_the_file_before(tmp_path):
    start = int(time.time()) - 100
    log = tmp_path / "log"
    log.write_text(f"[{stamp(start - 60)}] server_args={{'port': 6}}\n[{stamp(start - 50)} TP0] CUDA out of memory\n")
    rotate(log)
    log.write_text("Attention backend not specified.\n")
    for changed in (start - 40, start + 1):
        os.utime(f"{log}.1", (changed, changed))
        seen = collect(log, start, PATTERNS)
        assert (seen["rotated"], seen["hits"], seen["server_args"]) == (None, {}, None)
    log.write_text(f"[{stamp(start + 1)}] server_args={{'port': 7}}\n")
    assert collect(log, None)["rotated"] is None
    log.write_text("Attention backend not specified.\n")
    assert collect(log, None)["server_args"]["port"] == 6
    (tmp_path / "log.1").unlink()
    os.mkfifo(tmp_path / "log.1")
    assert collect(log, start)["rotated"] is None
