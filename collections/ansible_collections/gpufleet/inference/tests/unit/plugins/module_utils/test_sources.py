# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import os
import socketserver
import struct
import threading
import time
from pathlib import Path
from xmlrpc.server import SimpleXMLRPCDispatcher

import pytest
from ansible_collections.gpufleet.inference.plugins.module_utils import _bounded, _gpus, _kernel, _model, _service, _system, _visits

GPU = "{}, GPU-{}, 00000000:01:00.0, NVIDIA RTX PRO 6000 Blackwell Server Edition, 580.95.05, 12.0, {}, 97887, 0, [N/A], 600.00"
SHARED = Path(os.environ.get("GPUFLEET_SHARED") or Path(__file__).parents[9] / "shared")


def test_gpu_table_with_processes(nvidia_smi):
    tool = nvidia_smi([GPU.format(0, "a", 76000) + ", None", GPU.format(1, "b", 10) + ", Reset"], ["GPU-a, 4711, 75990"])
    first = _gpus.sample(tool, 5)
    table = _gpus.combine(tool, first, {**first, "devices": [{**first["devices"][0], "memory_used_mib": 76100}]})
    assert (table["status"], table["count"], table["driver_version"]) == ("ok", 2, "580.95.05")
    device = table["devices"][0]
    assert device["processes"] == [{"pid": 4711, "memory_mib": 75990}] and device["power_w"] is None and device["power_limit_w"] == 600
    assert [row["delta"]["memory_used_mib"] for row in table["devices"]] == [100, None]
    assert table["devices"][1]["recovery_action"] == "Reset"


def test_a_field_that_the_driver_does_not_know_is_left_out(nvidia_smi):
    seen = _gpus.query(nvidia_smi([GPU.format(0, "a", 1)], unknown="gpu_recovery_action"), 5)
    assert seen["reason"] is None and seen["devices"][0]["recovery_action"] is None and seen["devices"][0]["memory_used_mib"] == 1


def test_a_hanging_or_missing_tool(nvidia_smi):
    slow = nvidia_smi([], prelude="sleep 30")
    part = _gpus.combine(slow, _gpus.sample(slow, 0.3), None)
    assert part["status"] == "unavailable" and "no answer within" in part["reason"]
    assert _gpus.combine("nosuch", _gpus.sample("nosuch", 1), None)["status"] == "absent"


def test_gpu_classes():
    assert _gpus.gpu_class("NVIDIA RTX PRO 6000 Blackwell Server Edition", None) == "sm120_pcie"
    assert _gpus.gpu_class("NVIDIA H200", "9.0") == "nvlink" and _gpus.gpu_class("Tesla T4", "7.5") is None


def kernel(path, patterns):
    return _bounded.call(lambda emit: _kernel.collect(path, patterns, emit), 5).values


XID = [{"name": "xid", "regex": r"NVRM: Xid \(PCI:([0-9a-f:.]+)\): (\d+)"}]


def test_kernel_lines_in_every_shape(tmp_path):
    log = tmp_path / "kernel.log"
    log.write_text(
        "<6>[   12.500000] NVRM: Xid (PCI:0000:01:00): 79, pid=1\n"
        "[Sun Feb 23 16:24:18 2025] NVRM: Xid (PCI:0000:9b:00): 119, pid=2\n"
        "4,1,20000000,-;NVRM: Xid (PCI:0000:02:00): 31, pid=3\nnoise\n"
    )
    seen = kernel(str(log), XID)
    boot = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    assert seen["hits"]["xid"]["count"] == 3 and len(seen["lines"]) == 3
    assert abs(seen["hits"]["xid"]["first_time"] - boot - 12.5) < 1 and abs(seen["hits"]["xid"]["last_time"] - boot - 20) < 1
    assert kernel(str(tmp_path / "none"), XID)["status"] == "unavailable"


@pytest.mark.skipif(not (SHARED / "samples").is_dir(), reason="no real samples beside the repository (GPUFLEET_SHARED)")
def test_kernel_lines_of_real_hosts():
    assert kernel(str(SHARED / "samples/dmesg.gpud.xid-119.log"), XID)["hits"]["xid"]["count"] >= 1
    assert kernel(str(SHARED / "samples/kmsg.gpud.1.log"), [{"name": "link", "regex": "link becomes ready"}])["hits"]["link"]["count"] > 5


def test_the_kernels_own_buffer_or_a_reason():
    seen = kernel(None, [])
    assert seen["status"] == "ok" or "/dev/kmsg" in seen["reason"]


def test_exit_in_supervisords_log():
    ends = ("other (exit status 2", "sglang (exit status 1", "sglang (terminated by SIGKILL")
    log = "".join(f"WARN exited: {end}; not expected)\n" for end in ends)
    assert _service.parse_exit(log, "sglang") == {"exit_code": None, "exit_signal": 9}
    assert _service.parse_exit(log, "other") == {"exit_code": 2, "exit_signal": None}


@pytest.fixture
def supervisord(tmp_path):
    """The XML-RPC face of supervisord on a unix socket."""
    info = {"statename": "RUNNING", "pid": 77, "start": 1000, "stop": 0, "exitstatus": 0, "stdout_logfile": "/log"}
    rpc = SimpleXMLRPCDispatcher(allow_none=True)
    rpc.register_function(lambda name: dict(info), "supervisor.getProcessInfo")
    rpc.register_function(lambda offset, length: "exited: sglang (terminated by SIGSEGV; not expected)\n", "supervisor.readLog")

    class Handler(socketserver.StreamRequestHandler):
        def handle(self):
            length = 0
            while (line := self.rfile.readline()) not in (b"\r\n", b""):
                if line.lower().startswith(b"content-length:"):
                    length = int(line.split(b":")[1])
            data = rpc._marshaled_dispatch(self.rfile.read(length))
            self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/xml\r\nContent-Length: %d\r\n\r\n" % len(data) + data)

    class Door(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
        daemon_threads = True

    door = Door(str(tmp_path / "s.sock"), Handler)
    threading.Thread(target=door.serve_forever, daemon=True).start()
    conf = tmp_path / "supervisord.conf"
    conf.write_text("[unix_http_server]\nfile=%(here)s/s.sock ; the socket\n[supervisord]\n")
    yield str(conf), info
    door.shutdown()
    door.server_close()


def test_supervisor_program(supervisord):
    conf, info = supervisord
    seen = _service.collect("supervisor", "sglang", conf)
    assert (seen["status"], seen["state"], seen["main_pid"], seen["started"], seen["log_path"]) == ("ok", "running", 77, 1000, "/log")
    info.update(statename="EXITED", pid=0, stop=1010, exitstatus=-1)
    seen = _service.collect("supervisor", "sglang", conf)
    assert (seen["state"], seen["exit_signal"], seen["exit_code"], seen["since"]) == ("failed", 11, None, 1010)


def test_supervisor_that_does_not_answer(tmp_path):
    assert _service.collect("supervisor", "sglang", str(tmp_path / "none.conf"))["status"] == "unavailable"
    assert _service.collect(None, None, None)["status"] == "absent"


def shard(path, payload=2048, cut=0):
    header = b'{"w":{"dtype":"U8","shape":[%d],"data_offsets":[0,%d]}}' % (payload, payload)
    data = struct.pack("<Q", len(header)) + header + b"\0" * payload
    path.write_bytes(data[: len(data) - cut])


@pytest.fixture
def model(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"a": "m-1.safetensors", "b": "m-2.safetensors"}}')
    for name in ("m-1.safetensors", "m-2.safetensors"):
        shard(tmp_path / name)
    return tmp_path


def test_model_is_complete(model):
    assert _model.check(str(model), 5) == {"shards": 2, "problems": []}


@pytest.mark.parametrize("fault", ["missing", "truncated", "tiny", "pointer", "header", "config", "index"])
def test_model_fault_is_named(model, fault):
    path = model / "m-2.safetensors"
    if fault == "missing":
        path.unlink()
    elif fault == "truncated":
        shard(path, cut=100)
    elif fault == "tiny":
        path.write_bytes(b"x" * 100)
    elif fault == "pointer":
        path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
    elif fault == "header":
        path.write_bytes(b"\xff" * 4096)
    else:
        path = model / {"config": "config.json", "index": "model.safetensors.index.json"}[fault]
        path.unlink()
    (problem,) = _model.check(str(model), 5)["problems"] or [""]
    assert problem.startswith(str(path))


def test_system_tells_what_it_can():
    seen = _bounded.call(lambda emit: _system.collect("/", "/nosuch", os.getpid(), emit), 5).values
    assert seen["memory_available_mib"] > 0 and seen["model_disk_free_mib"] > 0 and seen["log_disk_free_mib"] is None
    assert seen["pids_at_limit"] in (False, None)


def look(at, **changes):
    counters = {
        "main_pid": 7,
        "rchar": 5,
        "read_bytes": 0,
        "majflt": 0,
        "gpu_memory_mib": 600,
        "log_size": 9,
        "tokens": None,
        "generate": "refused",
    }
    return {"at": at, "first_at": at, "count": 1, "compilers": [], **counters, **changes}


def add_all(*looks):
    record = None
    for visit in looks:
        record = _visits.add(record, visit)
    return record["visits"]


def test_a_still_run_keeps_its_first_and_its_last_visit():
    visits = add_all(*(look(100 * number) for number in range(1, 101)))
    assert [(visit["at"], visit["first_at"], visit["count"]) for visit in visits] == [(100, 100, 1), (10000, 200, 99)]


@pytest.mark.parametrize(
    "moved", [{"rchar": 10**9}, {"gpu_memory_mib": 700}, {"log_size": 10}, {"compilers": ["cicc"]}, {"main_pid": 8}, {"generate": "ok"}]
)
def test_progress_starts_a_new_run(moved):
    visits = add_all(look(100), look(200), look(300), look(400, **moved))
    assert [visit["at"] for visit in visits] == [100, 300, 400]


def test_our_own_probes_in_the_log_are_no_progress():
    visits = add_all(*(look(100 * number, generate="timeout", tokens=5, log_size=number) for number in range(1, 5)))
    assert [visit["count"] for visit in visits] == [1, 3]


def test_visits_are_bounded_and_garbage_is_replaced():
    assert len(add_all(*(look(number, rchar=number * 10**9) for number in range(100)))) == _visits.KEEP
    assert _visits.add({"visits": "garbage"}, look(1))["visits"][0]["at"] == 1
