# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""/metrics and /v1/loads from the counters that rank 0 and main keep."""

from __future__ import annotations

import time
from typing import Any

from sglang import __version__
from sglang.emulator.frontend import Frontend


def prometheus(frontend: Frontend) -> str:
    """The exposition text. Scheduler numbers are the last ones it published: they stay when it hangs."""
    name = frontend.args["served_model_name"]
    base = 'engine_type="unified",model_name="%s"' % name
    rank = base + ',moe_ep_rank="0",pp_rank="0",tp_rank="0"'
    stats = frontend.stats or {}
    lines: list[str] = []

    def add(metric: str, kind: str, what: str, samples: dict[str, Any]) -> None:
        lines.append("# HELP sglang:%s %s" % (metric, what))
        lines.append("# TYPE sglang:%s %s" % (metric, kind))
        lines.extend("sglang:%s{%s} %s" % (metric, labels, float(value)) for labels, value in samples.items())

    realtime = stats.get("realtime", {"prefill_compute": 0, "prefill_cache": 0, "decode": 0})
    add("num_running_reqs", "gauge", "Running requests.", {rank: stats.get("num_running_reqs", 0)})
    add("num_queue_reqs", "gauge", "Waiting requests.", {rank: stats.get("num_queue_reqs", 0)})
    add("num_used_tokens", "gauge", "KV tokens in use.", {rank: stats.get("num_used_tokens", 0)})
    add("token_usage", "gauge", "Share of the KV cache in use.", {rank: stats.get("token_usage", 0)})
    add("gen_throughput", "gauge", "Tokens per second.", {rank: stats.get("gen_throughput", 0)})
    add("cache_hit_rate", "gauge", "Prefix cache hit rate.", {rank: 0})
    add("max_total_num_tokens", "gauge", "KV capacity in tokens.", {rank: frontend.info["max_total_num_tokens"]})
    add("startup_time_seconds", "gauge", "Seconds to ready.", {rank: frontend.info["startup_s"]})
    add("weight_load_duration_seconds", "gauge", "Seconds of weight loading.", {rank: frontend.info["timings"].get("load_weight", 0)})
    add("realtime_tokens_total", "counter", "Tokens as the scheduler processes them.",
        {'%s,mode="%s"' % (rank, mode): value for mode, value in realtime.items()})  # fmt: skip
    add("http_requests_active", "gauge", "HTTP requests in flight.", {base: frontend.active_http})
    add("num_requests_total", "counter", "Finished requests.", {base: frontend.finished["requests"]})
    add("prompt_tokens_total", "counter", "Prompt tokens of finished requests.", {base: frontend.finished["prompt"]})
    add("generation_tokens_total", "counter", "Generated tokens of finished requests.", {base: frontend.finished["generation"]})
    return "\n".join(lines) + "\n"


def loads(frontend: Frontend, accelerator: str) -> dict[str, Any]:
    """/v1/loads from the same last numbers: answers even when the scheduler is stopped."""
    stats = frontend.stats or {}
    return {
        "timestamp": time.time(),
        "version": __version__,
        "accelerator": accelerator,
        "num_accelerators": frontend.args["tp_size"],
        "loads": [
            {
                "dp_rank": 0,
                "num_running_reqs": stats.get("num_running_reqs", 0),
                "num_waiting_reqs": stats.get("num_queue_reqs", 0),
                "num_used_tokens": stats.get("num_used_tokens", 0),
                "max_total_num_tokens": frontend.info["max_total_num_tokens"],
                "token_usage": stats.get("token_usage", 0.0),
                "gen_throughput": stats.get("gen_throughput", 0.0),
            }
        ],
    }
