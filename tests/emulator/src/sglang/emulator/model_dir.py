# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The model directory: configuration, shard index, safetensors headers. Also makes a small Kimi-K2.5-like one."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Any

from sglang.emulator.args import ConfigError


class SafetensorError(Exception):
    """What the safetensors library raises for a bad file; it names no file."""

    __module__ = "safetensors_rust"


def read_config(path: str) -> dict[str, Any]:
    """model_type, architecture, context_length, quantization, custom_code of ``path``. ConfigError as the engine would say it."""
    directory = Path(path)
    if not directory.is_dir():
        if path.count("/") > 1 or path.startswith((".", "/", "~")):
            raise ConfigError(
                "huggingface_hub.errors.HFValidationError",
                "Repo id must be in the form 'repo_name' or 'namespace/repo_name': '%s'. Use `repo_type` argument if needed." % path,
            )
        raise ConfigError(
            "OSError",
            "We couldn't connect to 'https://huggingface.co' to load the files, and couldn't find them in the cached files: %s" % path,
        )
    try:
        config = json.loads((directory / "config.json").read_text())
    except FileNotFoundError:
        raise ConfigError("ValueError", "Unrecognized model in %s. Should have a `model_type` key in its config.json." % path) from None
    except ValueError:
        raise ConfigError("OSError", "It looks like the config file at '%s/config.json' is not a valid JSON file." % path) from None
    if "model_type" not in config:
        raise ConfigError("ValueError", "Unrecognized model in %s. Should have a `model_type` key in its config.json." % path)
    text = config.get("text_config", config)
    return {
        "model_type": config["model_type"],
        "architectures": config.get("architectures", []),
        "context_length": text.get("max_position_embeddings", config.get("max_position_embeddings", 4096)),
        "quantization": text.get("quantization_config", config.get("quantization_config", {})).get("quant_method"),
        "layers": text.get("num_hidden_layers", 61),
        "kv_width": text.get("kv_lora_rank", 512) + text.get("qk_rope_head_dim", 64),
        "custom_code": bool(config.get("auto_map")),
        "vision": "vision_config" in config,
        "words": text.get("vocab_size", 163840),
    }


def shards(path: str) -> list[Path]:
    """The weight files of the index, in order. RuntimeError names the first missing one."""
    directory = Path(path)
    index = directory / "model.safetensors.index.json"
    if index.exists():
        names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
    else:
        names = sorted(file.name for file in directory.glob("*.safetensors"))
    if not names:
        raise RuntimeError("Cannot find any model weights with `%s`" % path)
    missing = [name for name in names if not (directory / name).exists()]
    if missing:
        raise RuntimeError(
            "Missing %d of %d weight file(s) listed in %s: %s" % (len(missing), len(names), index.name, directory / missing[0])
        )
    return [directory / name for name in names]


def check_header(stream: Any, size: int) -> None:
    """Validate a shard's header as the safetensors library does; leaves the stream after it. Raises SafetensorError."""

    def bad(reason: str) -> SafetensorError:
        return SafetensorError("Error while deserializing header: " + reason)

    first = stream.read(8)
    if len(first) < 8:
        raise bad("HeaderTooSmall")
    length = struct.unpack("<Q", first)[0]
    if length > 100_000_000:
        raise bad("HeaderTooLarge")
    if length > size - 8:
        raise bad("InvalidHeaderLength")
    try:
        header = json.loads(stream.read(length))
        end = max((tensor["data_offsets"][1] for name, tensor in header.items() if name != "__metadata__"), default=0)
    except (ValueError, KeyError, TypeError):
        raise bad("InvalidHeaderDeserialization") from None
    if 8 + length + end != size:
        raise bad("MetadataIncompleteBuffer")


def make_model(directory: Path, count: int = 64, shard_mib: int = 1) -> None:
    """Write a valid model directory: ``count`` shards of ``shard_mib`` MiB each, Kimi-K2.5's architecture in config.json."""
    directory.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["KimiK25ForConditionalGeneration"],
        "model_type": "kimi_k25",
        "auto_map": {"AutoConfig": "configuration_kimi_k25.KimiK25Config"},
        "max_position_embeddings": 262144,
        "dtype": "bfloat16",
        "text_config": {
            "architectures": ["DeepseekV3ForCausalLM"],
            "model_type": "kimi_k2",
            "max_position_embeddings": 262144,
            "num_hidden_layers": 61,
            "hidden_size": 7168,
            "num_attention_heads": 64,
            "n_routed_experts": 384,
            "num_experts_per_tok": 8,
            "kv_lora_rank": 512,
            "qk_rope_head_dim": 64,
            "q_lora_rank": 1536,
            "vocab_size": 163840,
            "quantization_config": {"quant_method": "compressed-tensors", "format": "pack-quantized"},
        },
        "vision_config": {"model_type": "moonvit", "num_hidden_layers": 27},
    }
    files = {
        "config.json": config,
        "generation_config.json": {"temperature": 1.0, "top_p": 0.95, "max_length": 262144},
        "tokenizer_config.json": {"tokenizer_class": "TikTokenTokenizer", "model_max_length": 262144, "chat_template": "{{ messages }}"},
    }
    for name, content in files.items():
        (directory / name).write_text(json.dumps(content, indent=1) + "\n")
    (directory / "configuration_kimi_k25.py").write_text("# Configuration class of the checkpoint; this small one needs none.\n")
    (directory / "tiktoken.model").write_text("".join("dG9rZW4= %d\n" % rank for rank in range(64)))
    weight_map = {}
    for number in range(count):
        shard = "model-%05d-of-%06d.safetensors" % (number + 1, count)
        tensor = "language_model.model.layers.%d.mlp.experts.%d.down_proj.weight_packed" % (number % 61, number)
        weight_map[tensor] = shard
        _write_shard(directory / shard, tensor, shard_mib * 2**20)
    total = count * shard_mib * 2**20
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")


def _write_shard(path: Path, tensor: str, size: int) -> None:
    """One tensor of 32-bit integers filling ``size`` bytes in all."""
    body = size - 512
    header = json.dumps({tensor: {"dtype": "I32", "shape": [body // 4], "data_offsets": [0, body]}}).encode().ljust(512 - 8)
    with open(path, "wb") as stream:
        stream.write(struct.pack("<Q", len(header)) + header)
        stream.write(os.urandom(4096) * (body // 4096) + bytes(body % 4096))
