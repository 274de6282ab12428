# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Bundles: any text, bounded reading, and one message for what is wrong."""

from __future__ import annotations

import json
import pathlib
import time

import pytest
from ansible_collections.gpufleet.inference.plugins.plugin_utils import bundle, lines, policy, signatures
from ansible_collections.gpufleet.inference.plugins.plugin_utils.diagnose import diagnose
from ansible_collections.gpufleet.inference.tests.unit.plugins.plugin_utils import snapshots

CATALOG = signatures.load()


def judge(directory: pathlib.Path) -> dict[str, object]:
    return diagnose(bundle.read(str(directory), CATALOG), CATALOG, policy.load())


@pytest.mark.parametrize(
    "wrap",
    [
        "{}",
        "2026-05-28T18:40:15.123456789Z stderr F {}",
        "2026-05-28T18:40:15.123456789Z {}",
        "May 28 18:40:15 gpu01 sglang[4711]: {}",
        "sglang-1  | {}",
        "\x1b[32m{}\x1b[0m",
    ],
)
def test_prefixes_and_colours(wrap: str) -> None:
    line = "[2026-05-28 18:40:15 TP3] Load weight begin. avail mem=94.14 GB"
    assert lines.clean(wrap.format(line)) == line


def test_docker_json() -> None:
    assert lines.clean(json.dumps({"log": "hello\n", "stream": "stderr"})) == "hello"


def test_carriage_return_bars(tmp_path: pathlib.Path) -> None:
    bars = "\r".join(f"Multi-thread loading shards: {n * 100 // 64:3d}% Completed | {n}/64 [00:41<02:04,  2.59s/it]" for n in range(42))
    (tmp_path / "server.log").write_text(snapshots.LOADING.replace(snapshots.BAR, bars))
    (tmp_path / "observed.yml").write_text("{engine: sglang, process: running, port: closed, silent_s: 3}")
    found = judge(tmp_path)
    assert (found["state"], found["phase"]) == ("starting", "weights_loading")
    assert found["progress"] == {"done": 41.0, "total": 64.0, "unit": "shards", "bytes_per_s": None}


def test_only_the_last_start_counts(tmp_path: pathlib.Path) -> None:
    crash = "torch.OutOfMemoryError: CUDA out of memory."
    (tmp_path / "server.log").write_text("\n".join([snapshots.LOADED, crash, *["noise"] * 40, snapshots.LOADING]))
    (tmp_path / "observed.yml").write_text("{engine: sglang, process: running, port: closed, silent_s: 3}")
    assert judge(tmp_path)["state"] == "starting"


def test_bytes_that_are_no_text(tmp_path: pathlib.Path) -> None:
    (tmp_path / "server.log").write_bytes(b"\xff\xfe\x00\x80 cut\nRuntimeError: CUDA error: uncorrectable ECC error encountered\n")
    assert judge(tmp_path)["cause"] == "ecc"


def test_reading_is_bounded(tmp_path: pathlib.Path) -> None:
    with (tmp_path / "server.log").open("wb") as stream:
        stream.write(snapshots.LOADED.encode() + b"\n")
        stream.seek(3 << 30)
        stream.write(b"\n[2026-05-28 19:00:00 TP0] x\ntorch.OutOfMemoryError: CUDA out of memory.\n")
    (tmp_path / "observed.yml").write_text("process: exited")
    started = time.monotonic()
    assert judge(tmp_path)["cause"] == "gpu_oom"
    assert time.monotonic() - started < 10


def test_a_saved_snapshot_wins(tmp_path: pathlib.Path) -> None:
    (tmp_path / "snapshot.json").write_text(json.dumps(snapshots.incident()))
    (tmp_path / "server.log").write_text("RuntimeError: can't start new thread")
    assert judge(tmp_path)["cause"] == "sm120_unsupported_backend"


def test_incident_as_text(tmp_path: pathlib.Path) -> None:
    (tmp_path / "server.log").write_text(snapshots.LOADING)
    (tmp_path / "strace.txt").write_text("\n".join(f'[pid 77] 00:35:{n:02d} write({120 + n}, "\\1", 1) = 1' for n in range(16)))
    (tmp_path / "observed.yml").write_text(
        "{engine: sglang, compute_capability: '12.0', gpus_expected: 8, process: running, port: closed, silent_s: 900,\n"
        " command: python3 -m sglang.launch_server --tp-size 8 --attention-backend flashinfer,\n"
        " progress: {read_bytes_per_s: 0, major_faults_per_s: 0, gpu_memory: flat}}"
    )
    found = judge(tmp_path)
    assert (found["state"], found["cause"], found["action"], found["confidence"]) == (
        "stuck",
        "sm120_unsupported_backend",
        "reconfigure",
        "medium",
    )


def test_xml(tmp_path: pathlib.Path) -> None:
    (tmp_path / "nvidia-smi.xml").write_text(
        "<nvidia_smi_log><driver_version>580.95.05</driver_version><gpu id='0'><product_name>B200</product_name>"
        "<gpu_recovery_action>Reboot</gpu_recovery_action><utilization><gpu_util>0 %</gpu_util></utilization></gpu></nvidia_smi_log>"
    )
    found = judge(tmp_path)
    assert (found["state"], found["action"]) == ("gpu_fault", "quarantine")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("observed.yml", "gpu_count: 8", "observed.yml: unknown key gpu_count (accepted: engine, "),
        ("observed.yml", "gpus: {fans: 8}", "observed.yml: unknown key gpus.fans (accepted: gpus.count, "),
        ("observed.yml", "process: asleep", "observed.yml: process: 'asleep' is none of running, exited, absent"),
        ("observed.yml", "silent_s: long", "observed.yml: silent_s: expected number"),
        ("observed.yml", "[1]", "observed.yml: top level: expected a mapping"),
        ("observed.yml", "a: [", "observed.yml: no YAML"),
        ("snapshot.json", "{", "snapshot.json: no JSON"),
        ("snapshot.json", '{"schema": 9}', "snapshot.json: schema 9 is not known"),
        ("nvidia-smi.xml", "<a>", "nvidia-smi.xml: no XML"),
    ],
)
def test_errors(tmp_path: pathlib.Path, name: str, content: str, message: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(bundle.BundleError) as caught:
        bundle.read(str(tmp_path), CATALOG)
    assert str(caught.value).startswith(message)


def test_no_directory() -> None:
    with pytest.raises(bundle.BundleError, match="not a directory"):
        bundle.read("/nonexistent", CATALOG)


def test_hostile_lines_are_only_text(tmp_path: pathlib.Path) -> None:
    (tmp_path / "server.log").write_text("{{ lookup('pipe', 'id') }}\n" + "A" * 12_000_000 + "\n\x1b]0;x\x07")
    assert judge(tmp_path)["state"] == "unknown"
