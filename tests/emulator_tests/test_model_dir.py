# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What happens with a broken model directory."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path
from typing import Any, Callable

import pytest

SHARD = "model-00033-of-000064.safetensors"


@pytest.fixture
def copy(model: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(model, tmp_path / "model"))


def test_missing_shard(copy: Path, make_server: Callable[..., Any]) -> None:
    (copy / SHARD).unlink()
    server = make_server(model_dir=copy).start()
    assert server.wait_exit() == -signal.SIGKILL
    assert "RuntimeError: " in server.log and SHARD in server.log


@pytest.mark.parametrize(
    ("kind", "reason"), [("truncated", "MetadataIncompleteBuffer"), ("lfs", "HeaderTooLarge"), ("empty", "HeaderTooSmall")]
)
def test_bad_shard(kind: str, reason: str, copy: Path, make_server: Callable[..., Any]) -> None:
    path = copy / SHARD
    content = {"truncated": path.read_bytes()[:700000], "lfs": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "empty": b""}
    path.write_bytes(content[kind])
    server = make_server(model_dir=copy).start()
    assert server.wait_exit() == -signal.SIGKILL
    assert "safetensors_rust.SafetensorError: Error while deserializing header: " + reason in server.log
    assert SHARD not in server.log


def test_no_config(copy: Path, make_server: Callable[..., Any]) -> None:
    (copy / "config.json").unlink()
    server = make_server(model_dir=copy).start()
    assert server.wait_exit() == 1
    assert "ValueError: Unrecognized model in " in server.log and "server_args=" not in server.log


def test_no_directory(tmp_path: Path, make_server: Callable[..., Any]) -> None:
    server = make_server(model_dir=tmp_path / "nowhere").start()
    assert server.wait_exit() == 1
    assert "Repo id must be in the form" in server.log
