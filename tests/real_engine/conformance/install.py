# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The two installations: the real engine of the cache, the emulator in a venv of its own."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

from conformance.target import Target

ROOT = Path(__file__).resolve().parents[3]
EMULATOR = ROOT / "tests" / "emulator"
# A CPU's pace: a request takes long enough to be looked at. What else the emulator needs to be told is that it is healthy.
SETTINGS = {"tokens_per_s": 12.0, "weights_gib": 2.0}
CONFIG = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "hidden_size": 256,
    "intermediate_size": 512,
    "moe_intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "q_lora_rank": 128,
    "kv_lora_rank": 64,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 32,
    "vocab_size": 512,
    "max_position_embeddings": 2048,
    "torch_dtype": "bfloat16",
}


def real() -> Target:
    """The engine in the cache; it must have been set up."""
    import engine

    folder = Path(os.environ.get("GPUFLEET_REAL_ENGINE") or engine.folder())
    environment = {name: value for name, value in engine.environment().items() if name != "PATH"}
    return Target("real", folder / "venv", folder / "models" / "tiny-deepseek-v3", environment)


def emulator(folder: Path, source: Path = EMULATOR) -> Target:
    """A venv in ``folder`` with the emulator from ``source``, a small model and a machine."""
    python = folder / "venv" / "bin" / "python"
    if not python.exists():
        venv.create(folder / "venv", symlinks=True)
    site = next((folder / "venv" / "lib").glob("python*/site-packages"))
    # The build tool and setproctitle are those of the tests' own environment: no network.
    (site / "borrowed.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "--python", str(python)]
    copy = folder / "source"
    subprocess.run(["rm", "-rf", str(copy)], check=True)
    subprocess.run(["cp", "-r", str(source), str(copy)], check=True)
    subprocess.run([*pip, "install", "--no-deps", "--no-index", "--no-build-isolation", "--force-reinstall", str(copy)], check=True)
    model = folder / "model"
    if not model.exists():
        make_model(model)
    machine = folder / "machine"
    tool = [str(python), "-m", "sglang.emulator"]
    subprocess.run([*tool, "make-machine", str(machine)], check=True, stdout=subprocess.DEVNULL)
    settings = [f"{name}={value}" for name, value in SETTINGS.items()]
    subprocess.run([*tool, "set-scenario", str(machine), "healthy", *settings], check=True, stdout=subprocess.DEVNULL)
    return Target("emulator", folder / "venv", model, {"SGLANG_EMULATOR_MACHINE": str(machine)})


def make_model(folder: Path, shards: int = 4) -> None:
    """A model folder like the real engine's small one, with one tensor a shard."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(CONFIG, indent=1) + "\n")
    names = [f"model-{number:05d}-of-{shards:05d}.safetensors" for number in range(1, shards + 1)]
    for number, name in enumerate(names):
        header = json.dumps({f"model.layers.{number}.weight": {"dtype": "BF16", "shape": [64, 64], "data_offsets": [0, 8192]}}).encode()
        header = header.ljust(-(-len(header) // 8) * 8)
        (folder / name).write_bytes(struct.pack("<Q", len(header)) + header + bytes(8192))
    index = {"metadata": {}, "weight_map": {f"model.layers.{number}.weight": name for number, name in enumerate(names)}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")
    tokenizer = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 2048, "chat_template": "{{ messages }}"}
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer) + "\n")
