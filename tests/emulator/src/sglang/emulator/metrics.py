# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""/metrics and /v1/loads from the counters that rank 0 and main keep. Names, types and labels: metrics.json."""

from __future__ import annotations

import datetime
import json
import time
from pathlib import Path
from typing import Any, Optional

from sglang import __version__
from sglang.emulator.frontend import Frontend, Sums

TABLE = json.loads(Path(__file__).with_name("metrics.json").read_text())
PHASES = ("load_weight", "kv_cache_allocation", "scheduler_e2e", "tokenizer_e2e")
HISTOGRAM_EDGES = ("0.1", "1.0", "10.0", "100.0", "1000.0")
IDLE = {"prefill_compute": 0, "prefill_cache": 0, "decode": 0}


def prometheus(frontend: Frontend) -> str:
    """The exposition text. Scheduler numbers are the last ones it published: they stay when it hangs."""
    return _Text(frontend).text()


class _Text:
    def __init__(self, frontend: Frontend) -> None:
        self.front, self.lines = frontend, list[str]()
        engine = {"engine_type": "unified", "model_name": frontend.args["served_model_name"]}
        rank = {**engine, "moe_ep_rank": "0", "pp_rank": "0", "tp_rank": "0"}
        self.scopes: dict[str, dict[str, str]] = {"server": {}, "engine": engine, "rank": rank}
        self.values = _scheduler_values(frontend)

    def text(self) -> str:
        """All metrics that have samples."""
        for name, entry in TABLE.items():
            labels = dict(self.scopes[entry["scope"]])
            if entry.get("pid"):
                labels["pid"] = str(self.front.info["pid"])
            self._add(name, entry["type"], [({**labels, **more}, value) for more, value in self._samples(name, entry)])
        self._http()
        return "\n".join(self.lines) + "\n"

    def _samples(self, name: str, entry: dict[str, Any]) -> list[tuple[dict[str, str], Any]]:
        """(labels beyond those of the scope, value or Sums) of one metric."""
        front = self.front
        per_stream = {
            "prompt_tokens_total": "prompt", "generation_tokens_total": "generation", "num_requests_total": "requests",
            "time_to_first_token_seconds": "first_token", "e2e_request_latency_seconds": "latency",
            "request_time_per_output_token_seconds": "per_token",
        }  # fmt: skip
        if name in per_stream:
            return [({"is_streaming": streaming}, getattr(done, per_stream[name])) for streaming, done in front.finished.items()]
        if name == "process_cpu_seconds_total":
            return [({"component": "tokenizer"}, time.process_time()), ({"component": "detokenizer"}, 0.0)]
        if name == "startup_time_seconds":
            return [({"phase": phase}, front.info["startup_time"][phase]) for phase in PHASES]
        if name == "cached_tokens_total":
            cached = sum(done.cached for done in front.finished.values())
            return [({"cache_source": "device"}, cached)] if cached else []
        if name == "inter_token_latency_seconds":
            streamed = front.finished.get("true")
            return [({}, streamed.per_token)] if streamed else []
        if entry["type"] == "histogram":
            done = {
                "prompt_tokens_histogram": "prompt",
                "uncached_prompt_tokens_histogram": "prompt",
                "generation_tokens_histogram": "generation",
            }
            total = sum(getattr(kind, done[name]) for kind in front.finished.values()) if name in done else 0
            count = sum(kind.requests for kind in front.finished.values()) if name in done else 0
            return [(more, Sums(total, count)) for more in entry.get("labels", [{}])]
        value = self.values.get(name, 0)
        return [(more, value.get(more.get("mode", ""), 0) if isinstance(value, dict) else value) for more in entry.get("labels", [{}])]

    def _http(self) -> None:
        """Requests by page, in the order in which they first came."""
        front = self.front
        pages = [({"endpoint": page, "method": method}, count) for (page, method), count in front.requests.items()]
        self._add("http_requests_total", "counter", pages)
        answers = [
            ({"endpoint": page, "method": method, "status_code": str(code)}, count)
            for (page, method, code), count in front.responses.items()
        ]
        self._add("http_responses_total", "counter", answers)
        self._add("http_requests_active", "gauge", [(labels, front.active[tuple(labels.values())]) for labels, _count in pages])

    def _add(self, name: str, kind: str, samples: list[tuple[dict[str, str], Any]]) -> None:
        if not samples:
            return
        self.lines.append("# HELP sglang:%s %s" % (name, name.replace("_", " ")))
        self.lines.append("# TYPE sglang:%s %s" % (name, kind))
        for labels, value in samples:
            if not isinstance(value, Sums):
                self._line(name, labels, value)
                continue
            self._line(name + "_sum", labels, value.total)
            mean = value.total / value.count if value.count else 0.0
            for edge in (*HISTOGRAM_EDGES, "+Inf"):
                self._line(name + "_bucket", {**labels, "le": edge}, value.count if mean <= float(edge) else 0)
            self._line(name + "_count", labels, value.count)

    def _line(self, name: str, labels: dict[str, str], value: Any) -> None:
        inside = ",".join('%s="%s"' % item for item in sorted(labels.items()))
        self.lines.append("sglang:%s%s %s" % (name, "{%s}" % inside if inside else "", float(value)))


def _scheduler_values(frontend: Frontend) -> dict[str, Any]:
    stats, info = frontend.stats or {}, frontend.info
    tokens, used = info["max_total_num_tokens"], stats.get("num_used_tokens", 0)
    realtime = stats.get("realtime", IDLE)
    return {
        **{name: stats.get(name, 0) for name in ("num_running_reqs", "num_queue_reqs", "num_used_tokens", "token_usage", "gen_throughput")},
        "full_token_usage": stats.get("token_usage", 0),
        "kv_used_tokens": used,
        "kv_available_tokens": tokens - used,
        "max_total_num_tokens": tokens,
        "page_size": 1,
        "num_pages": tokens,
        "context_len": info["context_length"],
        "weight_memory_usage_gb": info["weights_gib"],
        "kv_cache_memory_usage_gb": info["kv_gib"],
        "startup_available_gpu_memory_gb": info["available_gib"],
        "realtime_tokens_total": realtime,
        "prefill_effective_tokens_total": {"input": realtime["prefill_compute"]},
    }


def loads(frontend: Frontend, include: set[str], known_rank: bool) -> dict[str, Any]:
    """/v1/loads from the same last numbers: answers even when the scheduler is stopped."""
    stats, info, now = frontend.stats or {}, frontend.info, time.time()
    everything = "all" in include
    used = stats.get("num_used_tokens", 0)
    load: dict[str, Any] = {
        "timestamp": now,
        "dp_rank": 0,
        "num_running_reqs": stats.get("num_running_reqs", 0),
        "num_waiting_reqs": stats.get("num_queue_reqs", 0),
        "num_waiting_uncached_tokens": 0,
        "num_used_tokens": used,
        "num_total_tokens": used,
        "num_active_tokens": used,
        "num_prealloc_ready_tokens": 0,
        "max_total_num_tokens": info["max_total_num_tokens"],
        "max_running_requests": info["max_running"],
        "token_usage": float(stats.get("token_usage", 0)),
        "gen_throughput": float(stats.get("gen_throughput", 0)),
        "cache_hit_rate": 0.0,
        "utilization": 0.0,
        "total_prefill_uncached_tokens": stats.get("realtime", IDLE)["prefill_compute"],
        "total_prefill_busy_us": 0,
        "decode_moments": [float(stats["realtime"]["decode"])] * 6 if stats.get("realtime", IDLE)["decode"] else None,
    }
    sections: dict[str, Any] = {
        "memory": {"weight_gb": round(info["weights_gib"], 3), "kv_cache_gb": round(info["kv_gib"], 3), "graph_gb": 0.0,
                   "token_capacity": info["max_total_num_tokens"]},
        "disagg": {"mode": "null", "prefill_bootstrap_queue_reqs": 0, "prefill_inflight_queue_reqs": 0, "decode_prealloc_queue_reqs": 0,
                   "decode_transfer_queue_reqs": 0, "decode_retracted_queue_reqs": 0, "kv_transfer_speed_gb_s": 0.0,
                   "kv_transfer_latency_ms": 0.0},
        "queues": {"waiting": stats.get("num_queue_reqs", 0), "grammar": 0, "paused": 0, "retracted": 0, "prealloc_ready": 0},
    }  # fmt: skip
    for name, section in sections.items():
        if everything or name in include:
            load["disaggregation" if name == "disagg" else name] = section
    return {
        "timestamp": datetime.datetime.fromtimestamp(now, datetime.timezone.utc).isoformat(),
        "version": __version__,
        "accelerator": info["accelerator"],
        "num_accelerators": frontend.args["tp_size"],
        "loads": [load] if known_rank else [],
    }


def loads_text(answer: dict[str, Any]) -> str:
    """/v1/loads?format=prometheus."""
    lines: list[str] = []

    def add(name: str, value: Any, rank: Optional[int]) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                add("%s_%s" % ("disagg" if name == "disaggregation" else name, key), inner, rank)
        elif isinstance(value, (int, float)) and name != "dp_rank":
            lines.append('# TYPE sglang_%s gauge\nsglang_%s{dp_rank="%s"} %s' % (name, name, rank, value))

    for load in answer["loads"]:
        for key, value in load.items():
            add(key, value, load["dp_rank"])
    return "\n".join(lines) + "\n"
