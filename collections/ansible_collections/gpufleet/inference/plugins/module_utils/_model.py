# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. Whether a model directory is complete, from file sizes and headers; no weight is read."""

from __future__ import annotations

import json
import os
import struct
from typing import Any, Optional

from ansible_collections.gpufleet.inference.plugins.module_utils import _bounded

_INDEX = "model.safetensors.index.json"
_LFS = b"version https://git-lfs"
_SMALLEST = 1024
_LARGEST_HEADER = 100 << 20  # the format's own limit


def check(path: str, timeout: float) -> dict[str, Any]:
    """Check a model directory in a bounded child.

    :returns: ``shards`` (number that the index names) and ``problems`` (messages that name the file; empty if complete).
    """
    outcome = _bounded.call(lambda emit: emit(inspect(path)), timeout)
    if "problems" in outcome.values:
        return outcome.values
    return {"shards": None, "problems": [f"{path}: {outcome.reason() or 'could not be read'}"]}


def inspect(path: str) -> dict[str, Any]:
    """The same in this process."""
    if not os.path.isdir(path):
        what = "not a directory" if os.path.exists(path) else "no such directory"
        return {"shards": None, "problems": [f"{path or 'nothing'}: {what}"]}
    problems = [problem for problem in (_json(path, "config.json")[1],) if problem]
    if os.path.exists(os.path.join(path, _INDEX)):
        index, problem = _json(path, _INDEX)
        weights = index.get("weight_map") if isinstance(index, dict) else None
        if problem is None and not isinstance(weights, dict):
            problem = f"{os.path.join(path, _INDEX)}: no weight_map"
        if problem:
            return {"shards": None, "problems": [*problems, problem]}
        names = sorted({str(name) for name in weights.values()}) if isinstance(weights, dict) else []
    else:
        names = sorted(name for name in os.listdir(path) if name.endswith(".safetensors"))
        if len(names) != 1:
            problems.append(f"{os.path.join(path, _INDEX)}: missing")
    problems += [problem for name in names if (problem := shard_problem(os.path.join(path, name)))]
    return {"shards": len(names), "problems": problems}


def shard_problem(path: str) -> Optional[str]:
    """What is wrong with one safetensors file, null if it looks whole."""
    try:
        size = os.stat(path).st_size
        with open(path, "rb") as file:
            head = file.read(256)
            if head.startswith(_LFS):
                return f"{path}: a git-lfs pointer, not the weights"
            if size <= _SMALLEST:
                return f"{path}: only {size} bytes"
            length = struct.unpack("<Q", head[:8])[0]
            if length + 8 > size or length > _LARGEST_HEADER:
                return f"{path}: truncated or no safetensors file (header of {length} bytes in a file of {size})"
            file.seek(8)
            end = 8 + length + _data_end(file.read(length))
    except FileNotFoundError:
        return f"{path}: missing"
    except OSError as error:
        return f"{path}: {error.strerror}"
    return f"{path}: truncated, {size} of {end} bytes" if end > size else None


def _data_end(header: bytes) -> int:
    """Where the tensors end behind the header; 0 for a header that does not tell."""
    try:
        tensors = json.loads(header)
        return max((int(tensor["data_offsets"][1]) for name, tensor in tensors.items() if name != "__metadata__"), default=0)
    except (ValueError, AttributeError, KeyError, TypeError, IndexError):
        return 0


def _json(directory: str, name: str) -> tuple[Any, Optional[str]]:
    path = os.path.join(directory, name)
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file), None
    except FileNotFoundError:
        return None, f"{path}: missing"
    except OSError as error:
        return None, f"{path}: {error.strerror}"
    except ValueError:
        return None, f"{path}: not valid JSON"
