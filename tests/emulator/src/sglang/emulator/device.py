# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a rank computes on: a GPU of the emulated machine, or this host's CPU. Its memory, and the log lines that belong to it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Optional, Union

from sglang.emulator import machine as machines
from sglang.emulator.log import Log
from sglang.emulator.scenario import Scenario

GIB = 2**30


class Gpu:
    """One GPU of the machine. ``free`` and ``total`` are GiB."""

    kind, memory_name, graph_name = "cuda", "available_gpu_mem", "cuda graph"
    baseline = 0.28  # GiB that the process takes before any weight

    def __init__(self, machine: Optional[Path], index: int, scenario: Scenario) -> None:
        self._machine, self.index, self._scenario = machine, index, scenario
        self.data = machines.load(machine)
        self.total = (self.data["memory_total_mib"] - self.data["memory_reserved_mib"]) / 1024
        self._entry: Optional[machines.Gpu] = None
        self._used = 0.0

    def check(self) -> None:
        """RuntimeError when the GPU is not there."""
        if self.index >= self.data["count"] or self.data["devices"].get(str(self.index), {}).get("missing"):
            raise RuntimeError("CUDA error: invalid device ordinal")

    def attach(self) -> None:
        """Take the GPU: its context shows in nvidia-smi from now on."""
        self._entry = machines.Gpu(self._machine, self.index)
        self.use(0.0, 0, 85.0)

    def use(self, gib: float, utilization: int = 0, watts: float = 88.0) -> None:
        """Hold ``gib`` GiB of tensors, at ``utilization`` % and ``watts``."""
        self._used = gib
        if self._entry:
            self._entry.set(gib, utilization, watts)

    def work(self, busy: bool) -> None:
        """Serving: a batch runs or none."""
        self.use(self._used, 97 if busy else 0, 340.0 if busy else 88.0)

    def free(self) -> float:
        """GiB that nobody uses."""
        return machines.free_gib(self._machine, self.index)

    def weights(self, files: list[Path], world: int) -> float:
        """GiB of weights of one of ``world`` ranks. The files of an emulated model are tiny: a setting tells the size."""
        return float(self._scenario.get("weights_gib")) / world

    def before_parallel(self, log: Log, rank: int, world: int) -> None:
        """Lines after ``Init parallel begin.``"""

    def during_parallel(self, log: Log, rank: int, world: int, args: dict[str, Any]) -> None:
        """Lines once all ranks have met."""
        if rank == 0 and world > 1:
            log.info("sglang is using nccl==2.27.5")
        if world > 2 and not self.data["nvlink"] and not args["disable_custom_all_reduce"]:
            log.warning(
                "CustomAllReduceV2 is disabled because it's not supported on more than two PCIe-only GPUs. To silence this warning, "
                "specify disable_custom_all_reduce=True explicitly."
            )

    def after_parallel(self, log: Log) -> None:
        """Lines after the memory baseline."""


class Cpu:
    """This host's memory; there is no GPU, and nothing shows in nvidia-smi."""

    kind, memory_name, graph_name = "cpu", "available_cpu_mem", "cpu graph"
    baseline = 0.0
    index = 0

    def __init__(self, scenario: Scenario) -> None:
        self.total = float(scenario.get("cpu_memory_gib"))
        self.data: dict[str, Any] = {"gpu_model": None}

    def check(self) -> None:
        """A CPU is always there."""

    def attach(self) -> None:
        """Nothing to take."""

    def use(self, gib: float, utilization: int = 0, watts: float = 88.0) -> None:
        """Nothing shows it."""

    def work(self, busy: bool) -> None:
        """Nothing shows it."""

    def free(self) -> float:
        """GiB that a server may use."""
        return self.total

    def weights(self, files: list[Path], world: int) -> float:
        """GiB of weights of one of ``world`` ranks: what the files hold."""
        return sum(path.stat().st_size for path in files) / GIB / world

    def before_parallel(self, log: Log, rank: int, world: int) -> None:
        """Threads are bound to cores here."""
        if world > 1:
            log.warning(
                "The total number of ranks (%d) is larger than numa node number (1), in this case the available memory amount of each rank "
                "cannot be determined in prior. Please set proper `--max-total-tokens` to avoid the out-of-memory error." % world
            )
        log.info("init_threads_binding: numa_index=%d, world_size=%d, local_omp_cpuid=%s" % (rank, world, _cores(rank, world)))
        log.info("init_cpu_threads_env and shared memory based AllReduce is disabled, only intel amx backend and arm64 are supported")

    def during_parallel(self, log: Log, rank: int, world: int, args: dict[str, Any]) -> None:
        """The engine tries its GPU all-reduce here, too."""
        if world > 1 and not args["disable_custom_all_reduce"]:
            log.warning("Setup Custom allreduce failed with . To silence this warning, specify --disable-custom-all-reduce explicitly.")

    def after_parallel(self, log: Log) -> None:
        """Lines after the memory baseline."""
        log.warning("Cannot detect CUDA architecture.")


Device = Union[Gpu, Cpu]


def _cores(rank: int, world: int) -> str:
    bound = os.environ.get("SGLANG_CPU_OMP_THREADS_BIND", "").split("|")
    if len(bound) > rank and bound[rank]:
        return bound[rank]
    return ",".join(str(core) for core in sorted(os.sched_getaffinity(0)))


def choose(args: dict[str, Any], machine: Optional[Path], index: int, scenario: Scenario) -> Device:
    """The device of --device."""
    return Cpu(scenario) if args["device"] == "cpu" else Gpu(machine, index, scenario)
