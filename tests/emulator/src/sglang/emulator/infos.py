# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What /model_info and /server_info answer."""

from __future__ import annotations

import sys
from typing import Any

from sglang import __version__
from sglang.emulator.args import INTERNAL, RESOLVED
from sglang.emulator.frontend import Frontend

MODEL_KEYS = (
    "preferred_sampling_params", "weight_version", "load_format", "reasoning_parser", "tool_call_parser", "disaggregation_mode",
)  # fmt: skip


def model(front: Frontend) -> dict[str, Any]:
    """/model_info."""
    args, facts = front.args, front.model
    prefill = args["cuda_graph_config"]["prefill"]
    return {
        "model_path": args["model_path"],
        "served_model_name": args["served_model_name"],
        "tokenizer_path": args["tokenizer_path"],
        "is_generation": True,
        **{key: args.get(key) for key in MODEL_KEYS},
        "has_image_understanding": facts["vision"],
        "has_audio_understanding": False,
        "model_type": facts["model_type"],
        "architectures": facts["architectures"],
        "embedding": {
            **RESOLVED["embedding"],
            "bcg": {
                "prefill_backend": prefill["backend"],
                "enabled": False,
                "capture_token_budget": args["chunked_prefill_size"],
                "capture_batch_sizes": prefill["bs"],
            },
            "cache": {"kv_cache_disabled": False, "radix_cache_disabled": False, "chunked_prefill_disabled": False},
        },
    }


def server(front: Frontend, state: dict[str, Any]) -> dict[str, Any]:
    """/server_info: the settings, what start-up found, and the scheduler's own state."""
    settings = {**{key: value for key, value in front.args.items() if key != "config"}, **INTERNAL}
    info = front.info
    return {
        **settings,
        "custom_sigquit_handler": None,
        "launch_command": " ".join(sys.argv[1:] if sys.argv[1:2] != ["serve"] else sys.argv[2:]),
        "status": "ready",
        "max_total_num_tokens": info["max_total_num_tokens"],
        "max_req_input_len": info["max_req_input_len"],
        "startup_time": info["startup_time"],
        "hicache_object_layout": {
            "enabled": False, "backend": None, "page_size": 1, "hicache_object_layout": {"pools": []},
            "reason": "Hierarchical cache is disabled",
        },
        "kv_events": None,
        "internal_states": [{**settings, **_state(front, state)}],
        "version": __version__,
        "frontend": "python",
    }  # fmt: skip


def _state(front: Frontend, state: dict[str, Any]) -> dict[str, Any]:
    info = front.info
    startup = {key: value for key, value in info["startup_time"].items() if key != "tokenizer_e2e"}
    return {
        "disable_chunked_prefix_cache": True,
        "pp_max_micro_batch_size": info["max_running"],
        "disaggregation_decode_retraction_backup": "cpu_tensor",
        "startup_time": startup,
        "world_size": front.args["tp_size"],
        "effective_max_running_requests_per_dp": info["max_running"],
        "last_gen_throughput": float(state["gen_throughput"]),
        "memory_usage": {
            "weight": round(info["weights_gib"], 3), "kvcache": round(info["kv_gib"], 3),
            "startup_available": round(info["available_gib"], 3), "token_capacity": info["max_total_num_tokens"],
            "token_capacity_swa": None, "graph": startup["cuda_graph"],
        },
        "decode_cuda_graph_bs": [],
        "decode_cuda_graph_memory_gb": 0.0,
    }  # fmt: skip
