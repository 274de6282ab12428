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


@pytest.mark.parametrize(
    "line",
    [
        f"Authorization: Token {SECRET}",
        f"Cookie: session=1; other={SECRET}",
        f"headers={{'authorization': 'Token {SECRET}', 'cookie': 'a={SECRET}'}}",
        f"(b'authorization', b'Token {SECRET}')",
        f'{{"token": "{SECRET}"}}',
        f"password: {SECRET}",
        f"PGPASSWORD={SECRET} MYSQL_PWD={SECRET} DB_PASS={SECRET} KEY_PASSPHRASE={SECRET}",
        f"DefaultEndpointsProtocol=https;AccountKey={SECRET}==;x",
        f"server_args=ServerArgs(model_path='/m', api_key='{SECRET}",
        f"pip install --index-url https://{SECRET}@mirror/simple",
        f"-----BEGIN RSA PRIVATE KEY-----\n{SECRET}\n-----END RSA PRIVATE KEY-----",
        f"key AIza{SECRET}{SECRET}{SECRET}",
    ],
)
def test_secrets_in_other_shapes_leave_no_trace(line):
    assert SECRET not in _redact.text(line) and _redact.MASK in _redact.text(line)


@pytest.mark.parametrize(
    "name", ["PGPASSWORD", "MYSQL_PWD", "DB_PASS", "SSL_KEYFILE_PASSWORD", "SESSION_KEY", "AWS_SECRET_ACCESS_KEY", "HF_TOKEN"]
)
def test_names_of_secrets(name):
    assert _redact.is_secret_name(name)


@pytest.mark.parametrize(
    "name", ["NCCL_PROTO", "TOKENIZERS_PARALLELISM", "max_total_num_tokens", "tokens", "HF_HOME", "COMPASS", "key", "bypass"]
)
def test_names_of_no_secrets(name):
    assert not _redact.is_secret_name(name)


def test_a_command_line_in_a_document_loses_short_secrets_too():
    assert _redact.tree({"command": ["x", "--api-key", "abc", "--port", "1"]}) == {
        "command": ["x", "--api-key", _redact.MASK, "--port", "1"],
    }
