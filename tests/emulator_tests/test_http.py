# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The HTTP surface of a serving server."""

from __future__ import annotations

import http.client
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any, Callable

import pytest


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, model: Any, server_type: Any) -> Iterator[Any]:
    one = server_type(tmp_path_factory.mktemp("host"), model, 2, ["--api-key", "KEY", "--served-model-name", "kimi-k2.5"])
    one.key = "KEY"
    one.start().wait_ready()
    yield one
    one.close()


def stream(server: Any, path: str, body: Any) -> list[str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    headers = {"Authorization": "Bearer KEY", "Content-Type": "application/json"}
    connection.request("POST", path, json.dumps({**body, "stream": True}), headers)
    lines = connection.getresponse().read().decode().splitlines()
    connection.close()
    return [line[6:] for line in lines if line.startswith("data: ")]


def test_models_and_infos(server: Any) -> None:
    assert server.http("GET", "/v1/models")[1]["data"][0]["id"] == "kimi-k2.5"
    code, info = server.http("GET", "/model_info")
    assert code == 200 and info["architectures"] == ["KimiK25ForConditionalGeneration"]
    code, info = server.http("GET", "/get_server_info")
    assert code == 200 and info["api_key"] == "KEY" and info["version"] == "0.5.23"
    assert info["attention_backend"] == "triton" and info["max_total_num_tokens"] > 117000
    assert "Endpoint '/get_server_info' is deprecated" in server.log
    assert server.http("GET", "/nothing")[0] == 404
    assert server.http("GET", "/v1/loads")[1]["loads"][0]["num_running_reqs"] == 0


def test_key(server: Any) -> None:
    server.key = "wrong"
    try:
        assert server.http("GET", "/v1/models") == (401, {"error": "Unauthorized"})
        assert server.generate()[0] == 401
        assert server.http("GET", "/metrics")[0] == 200
        assert server.http("GET", "/health")[0] == 200
    finally:
        server.key = "KEY"


def test_answers(server: Any) -> None:
    code, chat = server.generate(30)
    assert code == 200 and chat["choices"][0]["finish_reason"] == "length"
    assert chat["usage"]["completion_tokens"] == 30 and chat["choices"][0]["message"]["content"]
    code, text = server.http("POST", "/v1/completions", {"prompt": "one two three", "max_tokens": 5})
    assert code == 200 and text["usage"] == {
        "prompt_tokens": 3, "total_tokens": 8, "completion_tokens": 5, "prompt_tokens_details": None, "reasoning_tokens": 0,
        "completion_tokens_details": None,
    }  # fmt: skip
    code, native = server.http("POST", "/generate", {"text": "one two", "sampling_params": {"max_new_tokens": 5}})
    assert code == 200 and native["meta_info"]["completion_tokens"] == 5 and len(native["output_ids"]) == 5


def test_streams(server: Any) -> None:
    body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 60, "stream_options": {"include_usage": True}}
    events = stream(server, "/v1/chat/completions", body)
    assert events[-1] == "[DONE]"
    parsed = [json.loads(event) for event in events[:-1]]
    assert parsed[-1]["usage"]["completion_tokens"] == 60 and parsed[-1]["choices"] == []
    assert len([event for event in parsed if event["choices"] and event["choices"][0]["delta"].get("content")]) >= 3
    assert parsed[-2]["choices"][0]["finish_reason"] == "length"
    events = stream(server, "/v1/completions", {"prompt": "x", "max_tokens": 5})
    assert "".join(json.loads(event)["choices"][0]["text"] for event in events[:-1])
    events = stream(server, "/generate", {"text": "x", "sampling_params": {"max_new_tokens": 5}})
    assert json.loads(events[-2])["meta_info"]["finish_reason"]["type"] == "length"


def test_metrics_move(server: Any) -> None:
    realtime, finished = server.metric("realtime_tokens_total", 'mode="decode"'), server.metric("generation_tokens_total")
    assert server.generate(20)[0] == 200
    assert server.metric("realtime_tokens_total", 'mode="decode"') == realtime + 20
    assert server.metric("generation_tokens_total") == finished + 20
    assert server.metric("num_running_reqs") == 0 and server.metric("http_requests_active") == 0
    assert server.metric("max_total_num_tokens") > 117000


def test_prompt_limits(server: Any) -> None:
    code, error = server.generate(prompt="w " * 118000)
    assert code == 400 and "exceeds the maximum allowed length" in error["message"]
    code, error = server.generate(prompt="w " * 270000)
    assert code == 400 and "longer than the model's context length (262144 tokens)" in error["message"]
    code, error = server.generate(tokens=262144)
    assert code == 400 and "Requested token count exceeds" in error["message"]
    code, answer = server.generate(prompt="w " * 9000)
    assert code == 200 and answer["usage"]["prompt_tokens"] == 9008
    assert server.http("POST", "/v1/chat/completions", {"messages": []})[0] == 400


def test_decode_lines(server: Any) -> None:
    server.generate(120)
    assert "Decode batch, #running-req: 1, #token: " in server.log


def test_a_client_that_leaves_is_aborted(server: Any) -> None:
    body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 4000, "ignore_eos": True}
    with pytest.raises(TimeoutError):
        server.http("POST", "/v1/chat/completions", body, 0.5)
    end = time.monotonic() + 5
    while server.metric("num_running_reqs") and time.monotonic() < end:
        time.sleep(0.1)
    assert server.metric("num_running_reqs") == 0


def test_a_request_is_aborted_by_its_id(server: Any) -> None:
    server.http("POST", "/flush_cache")
    found: list[Any] = []
    body = {"rid": "mine", "text": "x", "sampling_params": {"max_new_tokens": 4000, "ignore_eos": True}}
    client = threading.Thread(target=lambda: found.append(server.http("POST", "/generate", body)))
    client.start()
    time.sleep(0.5)
    assert server.http("POST", "/abort_request", {"rid": "mine"}) == (200, "")
    client.join(5)
    assert found[0][0] == 200 and found[0][1]["meta_info"]["id"] == "mine"


@pytest.mark.parametrize("title", ["sglang::scheduler_TP0", "sglang::scheduler_TP1", "sglang::detokenizer"])
def test_a_stopped_process_stops_tokens(server: Any, title: str) -> None:
    pid = server.child(title)
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(TimeoutError):
            server.generate(timeout=0.5)
        assert server.http("GET", "/health_generate")[0] == 503
        assert server.http("GET", "/v1/models")[0] == 200 and server.http("GET", "/v1/loads")[0] == 200
        if title.endswith("TP0"):
            with pytest.raises(TimeoutError):
                server.http("GET", "/server_info", timeout=0.5)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert "Health check failed. Server couldn't get a response from detokenizer" in server.log
    assert server.generate()[0] == 200
    assert server.http("GET", "/health")[0] == 200


def test_without_metrics_and_small_memory(make_server: Callable[..., Any]) -> None:
    server = (
        make_server(flags=["--mem-fraction-static", "0.7715", "--kv-cache-dtype", "fp8_e4m3", "--disable-cuda-graph"]).start().wait_ready()
    )
    assert "KV Cache is allocated. dtype: torch.float8_e4m3fn, #tokens: 9" in server.log
    assert "CUDA graph begin" not in server.log
    code, error = server.generate(prompt="w " * 12000)
    assert code == 400 and "exceeds the maximum allowed length" in error["message"]


def test_too_little_memory(make_server: Callable[..., Any]) -> None:
    server = make_server(flags=["--mem-fraction-static", "0.76"]).start()
    assert server.wait_exit() == -signal.SIGKILL
    assert "Not enough memory. Please try to increase --mem-fraction-static" in server.log
    assert "Scheduler hit an exception: Traceback (most recent call last):" in server.log
    assert "Received sigquit from a child process. It usually means the child failed." in server.log
