# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One scheduler process from its start to ready: titles, tokenizer, collectives, weights, KV cache, graphs."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Optional

from sglang.emulator import capacity, device, faults, model_dir, rendezvous
from sglang.emulator.args import backends
from sglang.emulator.log import Bar, Log, traceback_text
from sglang.emulator.process import die_with_parent, record_signals, set_title, sleeping_threads
from sglang.emulator.scenario import Scenario
from sglang.emulator.watchdog import Progress, watch

SRT = "sglang/srt/"
RUN = (SRT + "managers/scheduler.py", "run_scheduler_process", "scheduler = Scheduler(server_args, port_args, gpu_id, tp_rank)")
LOAD = [
    RUN,
    (SRT + "model_executor/model_runner.py", "load_model", "self.model = self.loader.load_model()"),
    (SRT + "model_loader/loader.py", "load_weights_and_postprocess", "model.load_weights(weights)"),
]
SERVE = [
    (SRT + "managers/scheduler.py", "run_scheduler_process", "scheduler.run_event_loop()"),
    (SRT + "managers/scheduler.py", "event_loop_overlap", "recv_reqs = self.recv_requests()"),
]
KIMI_TOKENS = ("163840", "163584", "163585")


@dataclass
class Links:
    """What connects one rank. ``peers``: rank 0 has one per other rank, another rank only the one to rank 0."""

    ready: Connection
    peers: list[rendezvous.Peer]
    control: Optional[Connection] = None
    detokenizer: Optional[Connection] = None


@dataclass
class Spec:
    """What every child is started with."""

    args: dict[str, Any]
    model: dict[str, Any]
    machine: Optional[Path]


class Rank:
    """State and start-up of one tensor-parallel rank."""

    def __init__(self, rank: int, spec: Spec, links: Links) -> None:
        self.rank, self.args, self.model, self.machine, self.links = rank, spec.args, spec.model, spec.machine, links
        self.world = spec.args["tp_size"]
        self.local_world = self.world // spec.args["nnodes"]
        prefix = " TP%d" % rank if self.world > 1 else ""
        self.title = "sglang::scheduler" + prefix.replace(" ", "_")
        self.log = Log(prefix, spec.args["log_level"])
        self.scenario = Scenario(spec.machine)
        self.flashinfer = "flashinfer" in backends(spec.args)
        index = spec.args["base_gpu_id"] + rank % self.local_world * spec.args["gpu_id_step"]
        self.device = device.choose(spec.args, spec.machine, index, self.scenario)
        self.frames = [RUN]
        self.timings: dict[str, float] = {}
        self.progress = Progress()

    def fault(self) -> Optional[str]:
        """The fault that is on now for this server's attention backend."""
        return self.scenario.fault(self.flashinfer)

    def follow_parent(self) -> None:
        """Die with main, except for the last worker of a stubborn server."""
        die_with_parent(not self.orphan())

    def orphan(self) -> bool:
        """This rank outlives main now."""
        return self.scenario.stubborn and self.rank == self.world - 1

    def exchange(self, value: Any, timeout: Optional[float] = None) -> list[Any]:
        """All ranks' values on every rank: a collective. RuntimeError when a peer is gone, ValueError on rank 0 after ``timeout`` s."""
        try:
            if self.rank:
                self.links.peers[0].send(value)
                return list(self.links.peers[0].recv())
            values = [value]
            deadline = time.monotonic() + timeout if timeout else None
            for peer in self.links.peers:
                if deadline and not peer.poll(max(0.0, deadline - time.monotonic())):
                    raise ValueError(
                        "TP rank %d could finish the model loading, but there are other ranks that didn't finish loading. "
                        "It is likely due to unexpected failures (e.g., OOM) or a slow node." % self.rank
                    )
                values.append(peer.recv())
            for peer in self.links.peers:
                peer.send(values)
            return values
        except (EOFError, OSError):
            raise self.peer_gone() from None

    def peer_gone(self) -> RuntimeError:
        """What the surviving rank of a collective reports."""
        return RuntimeError(
            "[/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:537] Read error [127.0.0.1]:%d: Connection reset by peer. "
            "This is typically caused by a remote worker hanging or bugs in the application. Check the logs of the remote worker before "
            "this one for details." % (20000 + self.rank)
        )

    # start-up, in order

    def start(self) -> None:
        """Everything up to ready."""
        begin = time.monotonic()
        time.sleep(self.scenario.get("spawn_imports_s"))
        # not before: a main that dies while its children import leaves them behind, as the real one does
        self.follow_parent()
        set_title(self.title)
        sleeping_threads(self.scenario.get("threads"))
        if self.args["soft_watchdog_timeout"]:
            watch("Scheduler", self.progress, self.log, self.scenario, float(self.args["soft_watchdog_timeout"]), True)
        for line in tokenizer_lines(self.args, self.model):
            self.log.info(line)
        self._init_parallel()
        self.frames = LOAD
        self._load_weights()
        self.frames = [RUN]
        self._allocate_kv()
        self._capture_graphs()
        if self.rank == 0:
            self.log.info(
                "max_total_num_tokens=%d, chunked_prefill_size=%d, max_prefill_tokens=%d, max_running_requests=%d, context_len=%d, "
                "%s=%.2f GB"
                % (self.capacity, self.args["chunked_prefill_size"], self.args["max_prefill_tokens"], self.max_running,
                   self.context_length, self.device.memory_name, self.available)
            )  # fmt: skip
        self.log.info("Init Unified Radix Cache. Components: (<ComponentType.FULL: 0>,). Tree Core: RustUnifiedTreeCore")
        self.log.info(
            "Tree cache initialized: source=default impl=UnifiedRadixCache hybrid_swa=False hybrid_ssm=False hicache_attached=False"
        )
        self.timings["scheduler_e2e"] = time.monotonic() - begin
        self.progress.initializing = False
        if self.args["watchdog_timeout"]:
            watch("Scheduler", self.progress, self.log, self.scenario, float(self.args["watchdog_timeout"]), False)

    def _init_parallel(self) -> None:
        start = time.monotonic()
        self.log.info("Init parallel begin.")
        self.device.check()
        self.device.before_parallel(self.log, self.rank, self.world)
        self._meet_other_nodes()
        time.sleep(self.scenario.get("dist_init_s"))
        self.device.attach()
        self.exchange(None)
        self.device.during_parallel(self.log, self.rank, self.world, self.args)
        self.log.info("Init parallel ends. elapsed=%.2f s" % (time.monotonic() - start))
        self.log.info("Memory baseline taken. mem usage=%.2f GB" % self.device.baseline)
        self.device.after_parallel(self.log)
        free = self.exchange(self.device.free())
        self.free = free[self.rank]
        if min(free) < max(free) * 0.9 and self.rank == 0:
            raise RuntimeError(
                "The memory capacity is unbalanced. Some GPUs may be occupied by other processes. "
                "pre_model_load_memory=%.2f, local_gpu_memory=%.2f, local_gpu_memory * 0.9=%.2f" % (min(free), self.free, self.free * 0.9)
            )

    def _meet_other_nodes(self) -> None:
        """Several nodes: rank 0 waits in silence for the ranks of the others, which look for it."""
        if self.args["nnodes"] == 1:
            return
        where = self.args["dist_init_addr"]
        timeout = float(self.args["dist_timeout"] or self.scenario.get("dist_timeout_s"))
        if self.rank == 0:
            self.listener = rendezvous.listen(where)
            found = rendezvous.gather(self.listener, self.world - self.local_world, timeout)
            self.links.peers += [found[rank] for rank in sorted(found)]
        elif self.args["node_rank"]:
            self.links.peers = [rendezvous.join(where, self.rank, timeout)]

    def _load_weights(self) -> None:
        start = time.monotonic()
        self.log.info("Load weight begin. avail mem=%.2f GB" % self.free)
        if self.model["vision"]:
            self.log.info("Multimodal attention backend not set. Use triton_attn.")
            self.log.info("Using triton_attn as multimodal attention backend.")
        if self.rank == 0 and self.model["model_type"] == "deepseek_v3":
            self.log.info("Config does not support fused shared expert(s). Shared experts fusion optimization is disabled.")
        if self.model["quantization"] == "compressed-tensors":
            self.log.info("Using CompressedTensorsWNA16MarlinMoEMethod")
        files = model_dir.shards(self.args["model_path"])
        self.weights = self.device.weights(files, self.world)
        # no line of another rank is glued to the bar
        self.exchange(None)
        self._read_shards(files)
        self._after_bar()
        self.available = capacity.free_after_weights(self.free, self.weights)
        elapsed = self.timings["load_weight"] = time.monotonic() - start
        quant = "quant=%s, " % self.model["quantization"] if self.model["quantization"] else ""
        self.log.info(
            "Load weight end. elapsed=%.2f s, type=%s, %savail mem=%.2f GB, mem usage=%.2f GB."
            % (elapsed, self.model["architectures"][0], quant, self.available, self.weights)
        )
        self.exchange(None, self.scenario.get("load_barrier_s"))

    def _read_shards(self, files: list[Path]) -> None:
        bar = Bar("Multi-thread loading shards", len(files)) if self.rank == 0 else None
        pace, start, shown = self.scenario.get("load_s") / len(files), time.monotonic(), 0.0
        slow_at = len(files) * self.scenario.get("slow_bar_pct") // 100
        if bar:
            bar.update(0)
        for done, path in enumerate(files, 1):
            size = path.stat().st_size
            with open(path, "rb", buffering=0) as stream:
                model_dir.check_header(stream, size)
                while stream.read(1 << 20):
                    pass
            loaded = self.weights * done / len(files)
            if (self.fault() == "oom" and self.rank == self.scenario.get("oom_rank") and done * 10 >= len(files) * 4) or loaded > self.free:
                raise faults.out_of_memory(self.device.index, self.device.total, 0.4)
            if done % 8 == 0 or done == len(files):
                self.device.use(loaded, 3, 92.0)
            time.sleep(max(0.0, start + pace * done - time.monotonic()))
            if bar and (done in (len(files), slow_at) or time.monotonic() - shown > 0.1):
                bar.update(done)
                shown = time.monotonic()
            if done == len(files) and bar:
                bar.close()
            if done == slow_at and self.fault() == "slow":
                self._read_slowly(files)

    def _read_slowly(self, files: list[Path]) -> None:
        until = time.monotonic() + self.scenario.get("slow_load_s")
        rate = self.scenario.get("slow_bytes_per_s")
        faults.read_slowly(files, rate, lambda: time.monotonic() < until and self.fault() == "slow")

    def _after_bar(self) -> None:
        """The silent part between the bar's 100 % and ``Load weight end``: where the incident hung."""
        self.device.use(self.weights)
        if self.fault() == "hang":
            faults.hang(self.rank)
        if self.fault() == "compile":
            until = time.monotonic() + self.scenario.get("compile_s")
            share = self.scenario.get("compile_cpu")
            faults.compile_kernels(self.rank, share, lambda: time.monotonic() < until and self.fault() == "compile")
        time.sleep(self.scenario.get("post_bar_s") * (1 - 0.02 * (self.rank % 4)))

    def _allocate_kv(self) -> None:
        if self.device.kind == "cpu" and self.args["max_total_tokens"]:
            tokens = self.args["max_total_tokens"]
        else:
            size = capacity.kv_gib(self.free, self.weights, self.args["mem_fraction_static"])
            tokens = capacity.kv_tokens(self.args, self.model, size)
        tokens = min(self.exchange(tokens))
        size = tokens * capacity.bytes_per_token(self.args, self.model) / capacity.GIB
        self.capacity = tokens
        self.max_running = self.args["max_running_requests"] or 2048
        self.context_length = self.args["context_length"] or self.model["context_length"]
        time.sleep(self.scenario.get("kv_s"))
        self.log.info("KV Cache is allocated. dtype: %s, #tokens: %d, KV size: %.2f GB" % (capacity.kv_dtype(self.args), tokens, size))
        self.available -= size
        self.log.info("Memory pool end. avail mem=%.2f GB" % self.available)
        self.device.use(self.free - self.available)
        self.timings["kv_cache_allocation"] = self.scenario.get("kv_s")

    def _capture_graphs(self) -> None:
        if self.args["cuda_graph_config"]["decode"]["backend"] == "disabled":
            self.log.info(
                "Disable prefill CUDA graph because cuda_graph_config resolved prefill.backend='disabled' (e.g. via "
                "--cuda-graph-backend-prefill=disabled or auto-disable rules)."
            )
            return
        start = time.monotonic()
        top = self.args["cuda_graph_max_bs_decode"] or 64
        sizes = self.args["cuda_graph_bs_decode"] or [size for size in (1, 2, 4, *range(8, top + 1, 8)) if size <= top]
        self.log.info("Capture target decode CUDA graph begin. backend=full, num_tokens_per_req=1, avail mem=%.2f GB" % self.available)
        pause, label = self.scenario.get("capture_s") / len(sizes), "Capturing batches (bs=%d avail_mem=%.2f GB)"
        bar = Bar("", len(sizes), "") if self.rank == 0 else None
        if bar is None:
            time.sleep(self.scenario.get("capture_s"))
        else:
            for done, size in enumerate(reversed(sizes)):
                bar.update(done, label % (size, self.available))
                time.sleep(pause)
            bar.update(len(sizes), label % (sizes[0], self.available))
            bar.close()
        usage = min(capacity.GRAPH_GIB, max(self.available - 0.1, 0))
        self.available -= usage
        self.device.use(self.free - self.available)
        self.timings["cuda_graph"] = time.monotonic() - start
        self.log.info(
            "Capture target decode CUDA graph end. bs=%s, elapsed=%.2f s, mem usage=%.2f GB, avail mem=%.2f GB."
            % (sizes, self.timings["cuda_graph"], usage, self.available)
        )
        self.exchange(None)

    def ready(self) -> dict[str, Any]:
        """What main is told when this rank is up."""
        return {
            "status": "ready",
            "pid": os.getpid(),
            "max_total_num_tokens": self.capacity,
            "max_req_input_len": min(self.context_length, self.capacity) - 6,
            "max_running": self.max_running,
            "context_length": self.context_length,
            "weights_gib": self.weights,
            "available_gib": self.available,
            "kv_gib": self.capacity * capacity.bytes_per_token(self.args, self.model) / capacity.GIB,
            "timings": self.timings,
        }


def tokenizer_lines(args: dict[str, Any], model: dict[str, Any]) -> list[str]:
    """What loading the tokenizer prints; Kimi's is a tiktoken one."""
    if not model["model_type"].startswith("kimi"):
        return []
    return [
        "Reloaded tiktoken model from %s/tiktoken.model" % args["tokenizer_path"],
        "#words: %s - BOS ID: %s - EOS ID: %s" % KIMI_TOKENS,
    ]


def run_scheduler_process(rank: int, spec: Spec, links: Links) -> None:
    """Target of a scheduler child: start, report, serve. An exception is logged and main gets SIGQUIT."""
    from sglang.emulator.serve import follow, lead

    me = Rank(rank, spec, links)
    parent = os.getppid()
    record_signals(spec.machine, me.scenario, me.title)
    try:
        me.start()
        links.ready.send(me.ready())
        me.frames = SERVE
        if rank == 0:
            lead(me)
        else:
            follow(me)
    except Exception as error:
        me.log.error("Scheduler hit an exception: " + traceback_text(error, me.frames) + "\n")
        if os.getppid() == parent:
            os.kill(parent, signal.SIGQUIT)
            time.sleep(0.5)
