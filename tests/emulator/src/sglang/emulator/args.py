# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The command line of 0.5.23: a flag table (server_args.json) built into argparse, and what the engine derives from it."""

from __future__ import annotations

import argparse
import json
import random
import re
from decimal import Decimal
from pathlib import Path
from typing import Any, Optional

TABLE = Path(__file__).with_name("server_args.json")
# what the engine fills in where the command line says nothing, and what it carries beyond its flags
RESOLVED: dict[str, Any] = json.loads(Path(__file__).with_name("resolved.json").read_text())
INTERNAL: dict[str, Any] = RESOLVED["internal"]
DECODE_BATCHES = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 18, 20, 22, 24, 26, 28, 30, 32)


def size(value: str) -> int:
    """A whole number that may end in k, M, G, T or Ki, Mi, Gi, Ti."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kMGT])|(\d+)([KMGT])i", value.strip())
    if not match:
        return int(value)
    if match[2]:
        return int(Decimal(match[1]) * 1000 ** ("kMGT".index(match[2]) + 1))
    return int(match[3]) << (10 * ("KMGT".index(match[4]) + 1))


TYPES = {"int": int, "float": float, "str": str, "json": json.loads, "size": size}
# first in the server_args line, as in the engine
FIRST = (
    "model_path",
    "tokenizer_path",
    "tokenizer_mode",
    "load_format",
    "model_loader_extra_config",
    "trust_remote_code",
    "context_length",
)


class ConfigError(Exception):
    """A setting that the engine refuses after parsing: exit 1 with a traceback. ``kind`` is the exception's name."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def build_parser() -> argparse.ArgumentParser:
    """The parser of ``sglang serve``: abbreviations allowed, as in the engine."""
    parser = argparse.ArgumentParser(prog="sglang serve", allow_abbrev=True)
    for flag, entry in json.loads(TABLE.read_text()).items():
        names = [flag, *entry.get("aliases", [])]
        options: dict[str, Any] = {"dest": entry.get("dest", flag[2:].replace("-", "_")), "default": entry.get("default")}
        action = entry.get("action")
        if action == "true":
            options.update(action="store_true", default=False)
        elif action == "optional":
            options.update(action=argparse.BooleanOptionalAction)
        elif action == "const":
            # a deprecated spelling that turns another flag on
            options.update(nargs="?", const=entry["choices"][0], choices=entry["choices"], default=argparse.SUPPRESS)
        else:
            options.update(type=TYPES[entry["type"]], choices=entry.get("choices"), required=entry.get("required", False))
            if "nargs" in entry:
                options["nargs"] = entry["nargs"]
        parser.add_argument(*names, **options)
    return parser


def parse(argv: list[str]) -> dict[str, Any]:
    """Parse ``argv`` (without the program) into dest -> value. Exits 2 on a usage error. A flat YAML --config comes first.

    ConfigError when that file is missing.
    """
    parser = build_parser()
    if "--config" in argv and argv.index("--config") + 1 < len(argv):
        at = argv.index("--config")
        argv = _config_flags(argv[at + 1]) + argv[:at] + argv[at + 2 :]
    return vars(parser.parse_args(argv))


def _config_flags(path: str) -> list[str]:
    """``key: value`` lines of a YAML file as flags (flat files only)."""
    flags: list[str] = []
    if not Path(path).is_file():
        raise ConfigError("ValueError", "Config file not found: %s" % path)
    for line in Path(path).read_text().splitlines():
        key, colon, value = line.split("#")[0].partition(":")
        if colon and key.strip() and value.strip() != "false":
            flags.append("--" + key.strip().replace("_", "-"))
            if value.strip() != "true":
                flags.append(value.strip().strip("'\""))
    return flags


def resolve(args: dict[str, Any], model: dict[str, Any], compute_cap: str) -> tuple[dict[str, Any], list[str]]:
    """Fill what the engine fills: (args, log lines). Raises ConfigError for what it refuses on this device or model."""
    args, notes = dict(args), []
    if model.get("custom_code") and not args["trust_remote_code"]:
        raise ConfigError(
            "ValueError",
            "The repository %s contains custom code which must be executed to correctly load the model. "
            "Please pass the argument `trust_remote_code=True` to allow custom code to be run." % args["model_path"],
        )
    if args["context_length"] and args["context_length"] > model["context_length"]:
        raise ConfigError(
            "ValueError",
            "Warning: User-specified context_length (%d) is greater than the derived context_length (%d). This may lead to incorrect model "
            "outputs or CUDA errors. Note that the derived context_length may differ from max_position_embeddings in the model's config. "
            "To allow overriding this maximum, set the env var SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1"
            % (args["context_length"], model["context_length"]),
        )
    if args["tp_size"] % args["nnodes"]:
        raise ConfigError("AssertionError", "tp_size must be divisible by number of nodes")
    on_cpu = args["device"] == "cpu"
    args["tokenizer_path"] = args["tokenizer_path"] or args["model_path"]
    args["served_model_name"] = args["served_model_name"] or args["model_path"]
    args["random_seed"] = args["random_seed"] if args["random_seed"] is not None else random.randrange(2**30)
    args["device"] = args["device"] or "cuda"
    args["chunked_prefill_size"] = args["chunked_prefill_size"] or (4096 if on_cpu else 8192)
    args["sampling_backend"] = args["sampling_backend"] or ("pytorch" if on_cpu else "flashinfer")
    if args["mem_fraction_static"] is None:
        # the automatic value for a vision-language model on a 96 GB card
        args["mem_fraction_static"] = 0.7715
    notes += _attention(args, model, 0 if on_cpu else int(compute_cap.split(".", maxsplit=1)[0]))
    if args.get("disable_cuda_graph"):
        notes.append("--disable-cuda-graph is deprecated. Use --cuda-graph-backend-{decode,prefill}=disabled instead.")
    no_graphs = "disabled" if args.get("disable_cuda_graph") or on_cpu or args["attention_backend"] == "torch_native" else None
    for name, value in RESOLVED["filled"].items():
        if args.get(name) in (None, False, "auto"):
            args[name] = value
    args["cuda_graph_config"] = {
        "decode": _graphs(no_graphs or args["cuda_graph_backend_decode"] or "full", [*DECODE_BATCHES]),
        "prefill": _graphs(no_graphs or args["cuda_graph_backend_prefill"] or "disabled", _prefill_batches(args["chunked_prefill_size"])),
    }
    return args, notes


def _attention(args: dict[str, Any], model: dict[str, Any], sm: int) -> list[str]:
    """Choose and check the attention backends of SM ``sm`` (0: a CPU)."""
    notes = []
    mla = "kimi" in model["model_type"] or "deepseek" in model["model_type"]
    if args["attention_backend"] is None:
        args["attention_backend"] = {0: "torch_native", 9: "fa3", 10: "trtllm_mla" if mla else "flashinfer"}.get(sm, "triton")
        notes.append("Attention backend not specified. Use %s backend by default." % args["attention_backend"])
    for backend in backends(args):
        if backend == "fa3" and sm not in (8, 9):
            raise ConfigError(
                "AssertionError", "FlashAttention v3 Backend requires SM>=80 and SM<=90. Please use `--attention-backend triton`."
            )
        if backend in ("cutedsl_mla", "tokenspeed_mla") and sm != 10:
            raise ConfigError("ValueError", "%s backend is only supported on SM100 GPUs. Please use a different backend." % backend)
        if backend == "trtllm_mha" and mla:
            raise ConfigError("ValueError", "trtllm_mha backend is not supported for MLA models.")
    if args["attention_backend"] == "torch_native":
        notes.append("Cuda graph is disabled because of using torch native attention backend")
    return notes


def _graphs(backend: str, batches: list[int]) -> dict[str, Any]:
    unset = ("max_context_size", "full_prefill_max_req", "full_prefill_prefix_chunk_tokens", "max_seq_len")
    return {"backend": backend, "max_bs": batches[-1], "bs": batches, "tc_compiler": "eager", **dict.fromkeys(unset)}


def _prefill_batches(largest: int) -> list[int]:
    """Token counts of prefill graphs: finer where they are small."""
    sizes = [*range(4, 33, 4), *range(48, 257, 16), *range(288, 513, 32), *range(576, 1025, 64)]
    return [size for size in [*sizes, *range(1280, max(largest, 1280) + 1, 256)] if size <= max(largest, 4)]


def backends(args: dict[str, Any]) -> list[str]:
    """The attention backends in effect: prefill and decode."""
    main = args["attention_backend"]
    return [args.get("prefill_attention_backend") or main, args.get("decode_attention_backend") or main]


def server_args_line(args: dict[str, Any]) -> str:
    """The long ``server_args={...}`` line, keys in clear as the engine prints them (api_key included)."""
    ordered = {key: args[key] for key in FIRST}
    ordered.update((key, args[key]) for key in sorted(args) if key not in ordered)
    return "server_args=%r" % ordered


def bool_env(value: Optional[str], default: bool = False) -> bool:
    """An environment flag: 1, true, yes, y."""
    return default if value is None else value.lower() in ("1", "true", "yes", "y")
