# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write tiny checkpoints of random weights, the same ones each time: models.py FOLDER. Runs in the engine's environment.

They say nothing of sense, in printable ASCII, and never end an answer by themselves.
"""

from __future__ import annotations

import hashlib
import json
import string
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

SHARDS = 3
HIDDEN, LAYERS, HEADS, VOCABULARY, CONTEXT = 256, 4, 4, 512, 4096
SPECIAL = ["<|begin|>", "<|end|>", "<|pad|>", "<|role|>", "<|stop|>"]
CHAT_TEMPLATE = (
    "{% for message in messages %}<|role|>{{ message['role'] }}: {{ message['content'] }}<|stop|>{% endfor %}"
    "{% if add_generation_prompt %}<|role|>assistant: {% endif %}"
)
TEXT = """A server that still makes progress is never killed, however slow it is. A server that will never finish is named first,
with its evidence, before anything is touched. Say hello. The capital of France is Paris. Count from one to ten, please.
river stone light paper green house music winter river stone light paper green house music winter"""
COMMON = {
    "hidden_size": HIDDEN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": CONTEXT,
    "intermediate_size": 512,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "attention_bias": False,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "dtype": "bfloat16",
}
LLAMA = {
    **COMMON,
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_key_value_heads": 2,
    "head_dim": 64,
    "mlp_bias": False,
}
DEEPSEEK = {
    **COMMON,
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "num_key_value_heads": HEADS,
    "q_lora_rank": 128,
    "kv_lora_rank": 64,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 32,
    "moe_intermediate_size": 128,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
    "n_group": 1,
    "topk_group": 1,
    "topk_method": "noaux_tc",
    "scoring_func": "sigmoid",
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
    "num_nextn_predict_layers": 0,
    "rope_scaling": {
        "type": "yarn",
        "rope_type": "yarn",
        "factor": 4,
        "original_max_position_embeddings": CONTEXT // 4,
        "beta_fast": 32,
        "beta_slow": 1,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
    },
}
MODELS: dict[str, dict[str, Any]] = {
    "tiny-llama": LLAMA,
    "tiny-deepseek-v3": DEEPSEEK,
    "tiny-kimi-k2": {**DEEPSEEK, "model_type": "kimi_k2"},
}


def make_tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([TEXT, CHAT_TEMPLATE], trainer)
    return tokenizer


def unprintable(tokenizer: Tokenizer) -> list[int]:
    """The tokens that are not text of printable ASCII, those without a token among them."""
    good = set(string.ascii_letters + string.digits + string.punctuation + pre_tokenizers.ByteLevel().pre_tokenize_str(" ")[0][0])
    fine = {number for word, number in tokenizer.get_vocab().items() if word not in SPECIAL and set(word) <= good}
    return [number for number in range(VOCABULARY) if number not in fine]


def attention_shapes(config: dict[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    if config["model_type"] == "llama":
        width, kv_width = HEADS * config["head_dim"], config["num_key_value_heads"] * config["head_dim"]
        yield "q_proj.weight", (width, HIDDEN)
        yield "k_proj.weight", (kv_width, HIDDEN)
        yield "v_proj.weight", (kv_width, HIDDEN)
        yield "o_proj.weight", (HIDDEN, width)
        return
    q_rank, kv_rank, rope = config["q_lora_rank"], config["kv_lora_rank"], config["qk_rope_head_dim"]
    nope, value = config["qk_nope_head_dim"], config["v_head_dim"]
    yield "q_a_proj.weight", (q_rank, HIDDEN)
    yield "q_a_layernorm.weight", (q_rank,)
    yield "q_b_proj.weight", (HEADS * (nope + rope), q_rank)
    yield "kv_a_proj_with_mqa.weight", (kv_rank + rope, HIDDEN)
    yield "kv_a_layernorm.weight", (kv_rank,)
    yield "kv_b_proj.weight", (HEADS * (nope + value), kv_rank)
    yield "o_proj.weight", (HIDDEN, HEADS * value)


def mlp_shapes(prefix: str, width: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield f"{prefix}gate_proj.weight", (width, HIDDEN)
    yield f"{prefix}up_proj.weight", (width, HIDDEN)
    yield f"{prefix}down_proj.weight", (HIDDEN, width)


def layer_shapes(config: dict[str, Any], layer: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield "input_layernorm.weight", (HIDDEN,)
    for name, shape in attention_shapes(config):
        yield f"self_attn.{name}", shape
    yield "post_attention_layernorm.weight", (HIDDEN,)
    if layer < config.get("first_k_dense_replace", LAYERS):
        yield from mlp_shapes("mlp.", config["intermediate_size"])
        return
    yield "mlp.gate.weight", (config["n_routed_experts"], HIDDEN)
    yield "mlp.gate.e_score_correction_bias", (config["n_routed_experts"],)
    for expert in range(config["n_routed_experts"]):
        yield from mlp_shapes(f"mlp.experts.{expert}.", config["moe_intermediate_size"])
    yield from mlp_shapes("mlp.shared_experts.", config["moe_intermediate_size"] * config["n_shared_experts"])


def shapes(config: dict[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield "model.embed_tokens.weight", (VOCABULARY, HIDDEN)
    for layer in range(LAYERS):
        for name, shape in layer_shapes(config, layer):
            yield f"model.layers.{layer}.{name}", shape
    yield "model.norm.weight", (HIDDEN,)
    yield "lm_head.weight", (VOCABULARY, HIDDEN)


def weight(model: str, name: str, shape: tuple[int, ...], never: list[int]) -> torch.Tensor:
    """A tensor that depends on nothing but its name."""
    if name.endswith("e_score_correction_bias"):
        return torch.zeros(shape)
    if name.endswith("norm.weight"):
        return torch.ones(shape, dtype=torch.bfloat16)
    seed = int.from_bytes(hashlib.sha256(f"{model} {name}".encode()).digest()[:6], "big")
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    if name == "model.embed_tokens.weight":
        # One direction that all tokens share, by which the head tells what may never come out.
        values[:, 0] = 4.0
    elif name == "lm_head.weight":
        values *= 0.06
        values[:, 0] = 0.0
        values[never, 0] = -8.0
    else:
        values *= 0.05
    return values.to(torch.bfloat16)


def write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n")


def make(folder: Path, config: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = make_tokenizer()
    tokenizer.save(str(folder / "tokenizer.json"))
    names = dict(zip(("bos_token", "eos_token", "pad_token"), SPECIAL, strict=False))
    write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            **names,
            "model_max_length": CONTEXT,
            "clean_up_tokenization_spaces": False,
            "chat_template": CHAT_TEMPLATE,
        },
    )
    write_json(folder / "config.json", config)
    write_json(folder / "generation_config.json", {"bos_token_id": 0, "eos_token_id": 1})
    never = unprintable(tokenizer)
    tensors = {name: weight(folder.name, name, shape, never) for name, shape in shapes(config)}
    order = list(tensors)
    index = {}
    for number in range(SHARDS):
        file = f"model-{number + 1:05d}-of-{SHARDS:05d}.safetensors"
        part = order[number * len(order) // SHARDS : (number + 1) * len(order) // SHARDS]
        save_file({name: tensors[name] for name in part}, str(folder / file), metadata={"format": "pt"})
        index.update(dict.fromkeys(part, file))
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    write_json(folder / "model.safetensors.index.json", {"metadata": {"total_size": size}, "weight_map": index})


if __name__ == "__main__":
    for model, described in MODELS.items():
        make(Path(sys.argv[1]) / model, described)
