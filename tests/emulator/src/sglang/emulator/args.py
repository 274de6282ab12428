# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The command line of 0.5.23: a flag table (server_args.json) built into argparse, and what the engine derives from it."""

from __future__ import annotations

import argparse
import json
import random
import sys
from pathlib import Path
from typing import Any, Optional

TABLE = Path(__file__).with_name("server_args.json")
TYPES = {"int": int, "float": float, "str": str, "json": json.loads}
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


class ArgumentParser(argparse.ArgumentParser):
    """argparse with the short usage line of the engine's errors; exit status 2."""

    def error(self, message: str) -> None:  # type: ignore[override]
        sys.stderr.write("usage: sglang serve [-h] --model-path MODEL_PATH [options]\n%s: error: %s\n" % (self.prog, message))
        sys.exit(2)


def build_parser() -> argparse.ArgumentParser:
    """The parser of ``sglang serve``: abbreviations allowed, as in the engine."""
    parser = ArgumentParser(prog="sglang serve", allow_abbrev=True)
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
    """Parse ``argv`` (without the program) into dest -> value. Exits 2 on a usage error. A flat YAML --config comes first."""
    parser = build_parser()
    if "--config" in argv and argv.index("--config") + 1 < len(argv):
        at = argv.index("--config")
        argv = _config_flags(argv[at + 1]) + argv[:at] + argv[at + 2 :]
    return vars(parser.parse_args(argv))


def _config_flags(path: str) -> list[str]:
    """``key: value`` lines of a YAML file as flags (flat files only)."""
    flags: list[str] = []
    for line in Path(path).read_text().splitlines():
        key, colon, value = line.split("#")[0].partition(":")
        if colon and key.strip() and value.strip() != "false":
            flags.append("--" + key.strip().replace("_", "-"))
            if value.strip() != "true":
                flags.append(value.strip().strip("'\""))
    return flags


def resolve(args: dict[str, Any], model: dict[str, Any], compute_cap: str) -> tuple[dict[str, Any], list[str]]:
    """Fill what the engine fills: (args, log lines). Raises ConfigError for what it refuses on this GPU or model."""
    args, notes = dict(args), []
    sm = int(compute_cap.split(".", maxsplit=1)[0])
    mla = "kimi" in model["model_type"] or "deepseek" in model["model_type"]
    if model.get("custom_code") and not args["trust_remote_code"]:
        raise ConfigError(
            "ValueError",
            "The repository %s contains custom code which must be executed to correctly load the model. "
            "Please pass the argument `trust_remote_code=True` to allow custom code to be run." % args["model_path"],
        )
    if args["context_length"] and args["context_length"] > model["context_length"]:
        raise ConfigError(
            "ValueError",
            "User-specified context_length (%d) is greater than the derived context_length (%d)."
            % (args["context_length"], model["context_length"]),
        )
    args["tokenizer_path"] = args["tokenizer_path"] or args["model_path"]
    args["served_model_name"] = args["served_model_name"] or args["model_path"]
    args["random_seed"] = args["random_seed"] if args["random_seed"] is not None else random.randrange(2**30)
    args["chunked_prefill_size"] = args["chunked_prefill_size"] or 8192
    if args["mem_fraction_static"] is None:
        # the automatic value for a vision-language model on a 96 GB card
        args["mem_fraction_static"] = 0.7715
    if args["attention_backend"] is None:
        args["attention_backend"] = {9: "fa3", 10: "trtllm_mla" if mla else "flashinfer"}.get(sm, "triton")
        notes.append("Attention backend not specified. Use %s backend by default." % args["attention_backend"])
    for backend in backends(args):
        if backend in ("fa3", "fa4") and sm not in (8, 9) and backend == "fa3":
            raise ConfigError(
                "AssertionError", "FlashAttention v3 Backend requires SM>=80 and SM<=90. Please use `--attention-backend triton`."
            )
        if backend in ("cutedsl_mla", "tokenspeed_mla") and sm != 10:
            raise ConfigError("ValueError", "%s backend is only supported on SM100 GPUs. Please use a different backend." % backend)
        if backend == "trtllm_mha" and mla:
            raise ConfigError("ValueError", "trtllm_mha backend is not supported for MLA models.")
    if args.get("disable_cuda_graph"):
        notes.append("--disable-cuda-graph is deprecated. Use --cuda-graph-backend-{decode,prefill}=disabled instead.")
        args["cuda_graph_backend_decode"] = args["cuda_graph_backend_prefill"] = "disabled"
    return args, notes


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
