# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import os
import socket
import time

import pytest
from ansible_collections.gpufleet.inference.plugins.module_utils import _fitness
from ansible_collections.gpufleet.inference.plugins.modules import generation_info, host_check_info

NAME = "NVIDIA RTX PRO 6000 Blackwell Server Edition"
GPU = "{0}, GPU-{0}, 00000000:0{0}:00.0, {1}, 580.95.05, 12.0, {2}, 97887, 0, 88, 600, None"


@pytest.fixture
def check(run_module, tmp_path):
    def run(**options):
        result = run_module(host_check_info, state_dir=str(tmp_path / "state"), **options)
        return result, {row["id"]: row for row in result["checks"]}

    return run


def test_a_fit_host(check, nvidia_smi, free_port):
    tool = nvidia_smi([GPU.format(0, NAME, 10), GPU.format(1, NAME, 10)])
    result, checks = check(nvidia_smi=tool, gpus_expected=2, gpu_memory_free_mib=90000, port=free_port())
    assert result["ok"] and (result["gpu_model"], result["gpu_class"], result["compute_cap"]) == (NAME, "sm120_pcie", "12.0")
    assert sorted(checks) == ["gpu_count", "gpu_memory", "gpu_model", "port_free"] and all(row["ok"] for row in checks.values())


def test_a_host_that_lacks_everything(check, nvidia_smi, tmp_path):
    tool = nvidia_smi([GPU.format(0, NAME, 50000), GPU.format(1, "NVIDIA H200", 10)], ["GPU-0, 4711, 49000"])
    with socket.create_server(("127.0.0.1", 0)) as door:
        port = door.getsockname()[1]
        result, checks = check(nvidia_smi=tool, gpus_expected=8, gpu_memory_free_mib=90000, port=port, model_path=str(tmp_path / "none"))
    assert not result["ok"] and not any(row["ok"] for row in checks.values())
    assert checks["gpu_count"]["message"] == "2 GPUs, gpus_expected is 8" and "4711" in checks["gpu_memory"]["message"]
    assert f"port {port} is taken by process {os.getpid()}" in checks["port_free"]["message"]
    assert str(tmp_path / "none") in checks["model_complete"]["message"]


def test_what_our_own_server_holds_is_free(check, nvidia_smi, start_server):
    server = start_server(listen=True)
    tool = nvidia_smi([GPU.format(0, NAME, 50000)], [f"GPU-0, {server.pid}, 49990"])
    result, checks = check(nvidia_smi=tool, gpu_memory_free_mib=90000, port=server.port, work_dir=server.work_dir)
    assert result["ok"] and checks["port_free"]["found"] == "ours"
    _result, elsewhere = check(nvidia_smi=tool, gpu_memory_free_mib=90000, port=server.port, work_dir="/elsewhere")
    assert elsewhere["port_free"]["ok"] is False and elsewhere["gpu_memory"]["ok"] is False


def test_no_driver(check):
    result, checks = check(nvidia_smi="nosuch-smi", gpus_expected=8, gpu_memory_free_mib=1)
    assert not result["ok"] and "No such file" in checks["gpu_count"]["message"] and checks["gpu_memory"]["ok"] is None


def test_a_host_that_is_to_have_no_gpu(check, nvidia_smi):
    result, checks = check(nvidia_smi="nosuch-smi", gpus_expected=0, gpu_memory_free_mib=1)
    assert result["ok"] and (result["gpu_class"], result["gpu_model"]) == ("cpu", None)
    assert list(checks) == ["gpu_count"] and checks["gpu_count"]["ok"] is True and "No such file" in checks["gpu_count"]["message"]

    result, checks = check(nvidia_smi="false", gpus_expected=0)
    assert result["ok"] and checks["gpu_count"]["ok"] is None

    result, checks = check(nvidia_smi=nvidia_smi([GPU.format(0, NAME, 10)]), gpus_expected=0)
    assert not result["ok"] and checks["gpu_count"]["message"] == "1 GPUs, gpus_expected is 0" and result["gpu_class"] == "sm120_pcie"


def test_no_gpu_where_some_are_expected_is_no_cpu_host(check):
    result, checks = check(nvidia_smi="nosuch-smi", gpus_expected=1)
    assert not result["ok"] and checks["gpu_count"]["ok"] is False and result["gpu_class"] is None


def test_a_port_whose_owner_can_not_be_seen():
    seen = {"listening": True, "ours": None, "owner_pid": None, "reason": None}
    assert _fitness.port_free(1, seen, None)["ok"] is False


def completion(handler):
    words = handler.body["messages"][0]["content"].split()
    if len(words) > 100:
        time.sleep(2)
    usage = {"completion_tokens": handler.body["max_tokens"], "prompt_tokens": len(words)}
    return 200, {"choices": [{"message": {"content": "one two three"}}], "usage": usage}


def test_short_and_long_prompts(run_module, serve):
    info = {"version": "0.5.23", "attention_backend": "triton", "context_length": 98304, "max_total_num_tokens": 163840}
    door = serve({"/v1/chat/completions": completion, "/v1/models": (200, {"data": [{"id": "kimi"}]}), "/server_info": (200, info)})
    tests = [{"name": "short", "prompt_tokens": 20, "max_tokens": 5}, {"name": "long", "prompt_tokens": 200, "timeout": 0.3}]
    result = run_module(generation_info, port=door.server_port, host="0.0.0.0", tests=tests)
    short, long = result["results"]
    assert short["ok"] and (short["tokens"], short["prompt_tokens"], short["error"]) == (5, 20, None) and short["tokens_per_s"] > 0
    assert not long["ok"] and long["error"] == "no answer within 0.3 s"
    assert {key: result[key] for key in info} == info
    assert door.seen[1][2]["model"] == "kimi"


def test_a_server_that_is_not_there(run_module, free_port):
    result = run_module(generation_info, port=free_port(), model="kimi")
    assert result["results"][0]["error"] == "refused" and result["version"] is None
