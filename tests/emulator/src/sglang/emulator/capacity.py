# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""GPU memory of one rank: weights, KV cache, graphs, from the measured numbers of 8 x 96 GB cards."""

from __future__ import annotations

from typing import Any

GIB = 2**30
GRAPH_GIB = 1.2


def free_after_weights(free_before: float, weights: float) -> float:
    """GiB left after ``weights`` GiB are loaded (94.14 - 72.33 on the reference host)."""
    return free_before - weights


def kv_gib(free_before: float, weights: float, mem_fraction: float) -> float:
    """GiB for the KV cache: what is left of the static fraction. RuntimeError when nothing is."""
    size = free_after_weights(free_before, weights) - free_before * (1 - mem_fraction)
    if size <= 0:
        raise RuntimeError(
            "Not enough memory. Please try to increase --mem-fraction-static. Current value: mem_fraction_static=%s" % mem_fraction
        )
    return size


def bytes_per_token(args: dict[str, Any], model: dict[str, Any]) -> int:
    """KV bytes of one token on one rank: MLA latent plus rope, all layers (70,272 in bf16 for Kimi-K2.5)."""
    width = 1 if str(args["kv_cache_dtype"]).startswith(("fp8", "mxfp8")) else 2
    return int(model["kv_width"] * model["layers"] * width)


def kv_tokens(args: dict[str, Any], model: dict[str, Any], size_gib: float) -> int:
    """Tokens that fit into ``size_gib`` GiB, and at most --max-total-tokens."""
    tokens = int(size_gib * GIB / bytes_per_token(args, model))
    return min(tokens, args["max_total_tokens"]) if args["max_total_tokens"] else tokens


def kv_dtype(args: dict[str, Any]) -> str:
    """The dtype as the log prints it."""
    return {"fp8_e4m3": "torch.float8_e4m3fn", "fp8_e5m2": "torch.float8_e5m2"}.get(str(args["kv_cache_dtype"]), "torch.bfloat16")
