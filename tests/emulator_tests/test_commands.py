# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The small commands and the stand-in for nvidia-smi."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Callable
from xml.etree import ElementTree

import pytest

SMI = "sglang.emulator.nvidia_smi"


@pytest.fixture
def run_tool(server_type: Any) -> Callable[..., Any]:
    return server_type.__init__.__globals__["run_tool"]


@pytest.fixture
def machine(tmp_path: Path, run_tool: Callable[..., Any]) -> Path:
    assert run_tool("make-machine", str(tmp_path / "m")).returncode == 0
    return tmp_path / "m"


def test_unknown_scenario_and_setting(machine: Path, run_tool: Callable[..., Any]) -> None:
    before = (machine / "scenario.json").read_text()
    done = run_tool("set-scenario", str(machine), "sabotage")
    assert done.returncode == 2 and "unknown scenario 'sabotage'" in done.stderr and "green_freeze" in done.stderr
    done = run_tool("set-scenario", str(machine), "oom", "speed=1")
    assert done.returncode == 2 and "unknown setting 'speed'" in done.stderr
    assert run_tool("set-scenario", str(machine), "oom", "oom_rank=x").returncode == 2
    assert (machine / "scenario.json").read_text() == before
    assert run_tool("set-scenario", str(machine), "oom", "oom_rank=2").returncode == 0
    assert json.loads((machine / "scenario.json").read_text()) == {"scenario": "oom", "settings": {"oom_rank": "2"}}


def test_usage_error_exits_2(run_tool: Callable[..., Any]) -> None:
    done = run_tool("--model-path", "/m", "--bogus", module="sglang.launch_server")
    assert done.returncode == 2
    assert done.stderr.strip().splitlines()[-1] == "sglang serve: error: unrecognized arguments: --bogus"


def test_make_model(model: Path) -> None:
    from sglang.emulator.model_dir import check_header, read_config, shards

    config = read_config(str(model))
    assert config["model_type"] == "kimi_k25" and config["context_length"] == 262144 and config["vision"]
    files = shards(str(model))
    assert len(files) == 64 and {path.stat().st_size for path in files} == {2**20}
    for path in files[:3]:
        with open(path, "rb") as stream:
            check_header(stream, 2**20)


def test_query_gpu(machine: Path, run_tool: Callable[..., Any]) -> None:
    fields = "index,uuid,name,pci.bus_id,driver_version,memory.total,memory.used,memory.free,utilization.gpu,power.draw,compute_cap,pstate"
    done = run_tool("--query-gpu=" + fields, "--format=csv", machine=machine, module=SMI)
    lines = done.stdout.splitlines()
    assert lines[0].startswith("index, uuid, name, pci.bus_id, driver_version, memory.total [MiB], memory.used [MiB]")
    assert len(lines) == 9 and "97887 MiB, 0 MiB" in lines[1] and lines[1].endswith("34.00 W, 12.0, P8")
    assert len({line.split(", ")[1] for line in lines[1:]}) == 8
    done = run_tool("--query-gpu=memory.used,utilization.gpu", "--format=csv,noheader,nounits", "-i", "3", machine=machine, module=SMI)
    assert done.stdout == "0, 0\n"
    done = run_tool("--query-gpu=index,nonsense", "--format=csv", machine=machine, module=SMI)
    assert done.returncode == 2 and 'Field "nonsense" is not a valid field to query.' in done.stdout
    assert '"power.draw.instant"' in run_tool("--help-query-gpu", module=SMI).stdout


def test_processes_of_the_living_only(machine: Path, run_tool: Callable[..., Any]) -> None:
    from sglang.emulator.machine import start_time

    for index, (pid, start) in enumerate([(os.getpid(), start_time(os.getpid())), (os.getpid(), 1), (2**22 - 1, 1)]):
        entry = {"index": index, "pid": pid, "start_time": start, "memory_used_mib": 75000, "utilization": 7, "power": 120.0}
        (machine / "gpus" / ("%d.%d.json" % (index, pid))).write_text(json.dumps(entry))
    (machine / "gpus" / "9.9.json").write_text("{")
    done = run_tool("--query-compute-apps=pid,gpu_uuid,process_name,used_memory", "--format=csv", machine=machine, module=SMI)
    lines = done.stdout.splitlines()
    assert lines[0] == "pid, gpu_uuid, process_name, used_gpu_memory [MiB]"
    assert len(lines) == 2 and lines[1].startswith("%d, GPU-" % os.getpid()) and lines[1].endswith(", 75000 MiB")

    root = ElementTree.fromstring(run_tool("-q", "-x", machine=machine, module=SMI).stdout.split("\n", 2)[2])
    gpus = root.findall("gpu")
    assert root.findtext("attached_gpus") == "8" and len(gpus) == 8
    assert gpus[0].findtext("fb_memory_usage/used") == "75000 MiB" and gpus[1].findtext("fb_memory_usage/used") == "0 MiB"
    assert gpus[0].findtext("processes/process_info/pid") == str(os.getpid())
    assert gpus[0].findtext("utilization/gpu_util") == "7 %" and gpus[0].findtext("gpu_power_readings/instant_power_draw") == "120.00 W"
    only = ElementTree.fromstring(run_tool("-q", "-x", "-i", "2", machine=machine, module=SMI).stdout.split("\n", 2)[2])
    assert [gpu.findtext("minor_number") for gpu in only.findall("gpu")] == ["2"]

    table = run_tool(machine=machine, module=SMI).stdout.splitlines()
    assert any("75000MiB /  97887MiB" in line for line in table)
    assert {len(line) for line in table if line.startswith(("|", "+"))} == {91}
    assert len(run_tool("-L", machine=machine, module=SMI).stdout.splitlines()) == 8


def test_other_machines(tmp_path: Path, run_tool: Callable[..., Any]) -> None:
    run_tool("make-machine", str(tmp_path / "h"), "--gpu-model", "NVIDIA H200", "--gpus", "4")
    done = run_tool("--query-gpu=name,compute_cap,memory.total", "--format=csv,noheader", machine=tmp_path / "h", module=SMI)
    assert done.stdout.splitlines() == ["NVIDIA H200, 9.0, 143771 MiB"] * 4
    data = json.loads((tmp_path / "h" / "machine.json").read_text())
    data["devices"] = {"1": {"missing": True}, "2": {"extra_memory_mib": 5000, "recovery_action": "Reset"}}
    (tmp_path / "h" / "machine.json").write_text(json.dumps(data))
    done = run_tool(
        "--query-gpu=index,memory.used,gpu_recovery_action", "--format=csv,noheader,nounits", machine=tmp_path / "h", module=SMI
    )
    assert done.stdout.splitlines() == ["0, 0, None", "2, 5000, Reset", "3, 0, None"]
