# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.gpufleet.inference.plugins.module_utils import _redact

SECRET = "s3cr3tV4lue9"


@pytest.mark.parametrize(
    "line",
    [
        f"Authorization: Bearer {SECRET}abc",
        "token hf_abcdefghijklmnopqrstuv in use",
        "key sk-proj-abcdefghijklmnop",
        "nvapi-abcdefghijklmnopqrst",
        "AKIAABCDEFGHIJKLMNOP",
        "ghp_abcdefghijklmnopqrstuvwxyz",
        "glpat-abcdefghijklmnopqrs",
        "xoxb-1234567890-abc",
        "eyJhbGciOiJI.eyJzdWIiOiIx.abc-def",
        f"https://user:{SECRET}@mirror/simple",
        f"https://s3/x?X-Amz-Signature={SECRET}&y=1",
        f"server_args={{'model_path': '/m', 'api_key': '{SECRET}', 'port': 1}}",
        f"server_args=ServerArgs(model_path='/m', api_key='{SECRET}', port=1)",
        f'{{"admin_api_key": "{SECRET}"}}',
        f"python -m x --api-key {SECRET} --port 1",
        f"python -m x --admin-api-key={SECRET}",
        f"HF_TOKEN={SECRET} python",
        f"AWS_SECRET_ACCESS_KEY={SECRET}",
        f"password: '{SECRET}'",
    ],
)
def test_secret_leaves_no_trace_in_a_line(line):
    cleaned = _redact.text(line)
    assert _redact.MASK in cleaned
    for part in (SECRET, "hf_abc", "sk-proj", "nvapi-abc", "AKIAABC", "ghp_abc", "glpat-abc", "xoxb-1", "eyJhbG"):
        assert part not in cleaned


@pytest.mark.parametrize(
    "line",
    [
        "max_total_num_tokens=4578, chunked_prefill_size=8192",
        "server_args={'api_key': None, 'tokenizer_path': '/m'}",
        "python -m sglang.launch_server --tokenizer-path /m --max-total-tokens 100",
        "[2026-01-29 01:13:16 TP0] Decode batch, #token: 69, token usage: 0.02",
        "http://127.0.0.1:30000/health",
    ],
)
def test_plain_lines_stay(line):
    assert _redact.text(line) == line


def test_command_line_and_environment():
    assert _redact.argv(["x", "--api-key", "abc", "--port", "1", "--hf-token=abc", "--tp", "8"]) == [
        "x", "--api-key", _redact.MASK, "--port", "1", f"--hf-token={_redact.MASK}", "--tp", "8",
    ]  # fmt: skip
    assert _redact.environment({"HF_TOKEN": "abc", "NCCL_PROTO": "LL"}) == {"HF_TOKEN": _redact.MASK, "NCCL_PROTO": "LL"}


def test_known_values_are_hidden_wherever_they_turn_up():
    known = _redact.secrets(["--api-key", "topsecret1", "--port", "30000"], {"HF_TOKEN": "another2"})
    assert known == ["topsecret1", "another2"]
    assert _redact.tree({"a": ["echo topsecret1"], "b": {"password": "x", "n": 1}}, known) == {
        "a": [f"echo {_redact.MASK}"], "b": {"password": _redact.MASK, "n": 1},
    }  # fmt: skip
