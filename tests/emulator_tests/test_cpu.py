# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A server on a CPU, as the real one was seen there: its lines, pages, headers, errors and metrics."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable

import pytest

CPU = ["--device", "cpu", "--attention-backend", "torch_native", "--max-total-tokens", "4096"]
ORDER = [
    "Cuda graph is disabled because of using torch native attention backend",
    "server_args={'model_path':",
    "Using default HuggingFace chat template with detected content format: string",
    "] Init parallel begin.",
    "] init_threads_binding: numa_index=0, world_size=1, local_omp_cpuid=",
    "] Init parallel ends. elapsed=",
    "] Memory baseline taken. mem usage=0.00 GB",
    "] Cannot detect CUDA architecture.",
    "] Load weight begin. avail mem=20.00 GB",
    "Multi-thread loading shards:   0% Completed | 0/4 [00:00<?, ?it/s]",
    "Multi-thread loading shards: 100% Completed | 4/4 [",
    "] Load weight end. elapsed=",
    "] KV Cache is allocated. dtype: torch.bfloat16, #tokens: 4096, KV size: 0.00 GB",
    "] Memory pool end. avail mem=",
    "] Disable prefill CUDA graph because cuda_graph_config resolved prefill.backend='disabled'",
    "] max_total_num_tokens=4096, chunked_prefill_size=4096, max_prefill_tokens=16384, max_running_requests=2048, context_len=2048, avail",
    "] Init Unified Radix Cache.",
    "] Tree cache initialized: source=default impl=UnifiedRadixCache",
    "] Engine startup timings (s): load_weight=",
    "INFO:     Started server process [",
    "INFO:     Waiting for application startup.",
    "Using fallback token IDs for yes/no (9693/2152)",
    "INFO:     Application startup complete.",
    "INFO:     Uvicorn running on http://127.0.0.1:",
    '"GET /model_info HTTP/1.1" 200 OK',
    "] Prefill batch, #new-seq: 1, #new-token: 6, #cached-token: 0, token usage: 0.00, #running-req: 0, #queue-req: 0, #pending-token: 0, ",
    "cpu graph: False, input throughput (token/s): ",
    '"POST /generate HTTP/1.1" 200 OK',
    '"POST /freeze_gc HTTP/1.1" 200 OK',
    "The server is fired up and ready to roll!",
]
EMPTY_PAGE = ["date", "server", "content-length", "vary"]
JSON_PAGE = ["date", "server", "content-length", "content-type", "vary"]
NO_MODEL = json.dumps(
    {
        "error": {
            "message": "The model 'nonsense' does not exist",
            "type": "invalid_request_error",
            "param": "model",
            "code": "model_not_found",
        }
    },
    separators=(",", ":"),
)
USER = '{"messages":[{"role":"%s","content":"x"}],"max_tokens":%s}'
MISSING = "1 validation error:\n  {'type': 'missing', 'loc': ('body',%s), 'msg': 'Field required', 'input': %s}\n\n  File "
ONE = "1 validation error:\n  {'type': '%s', 'loc': "
INVALID = "1 validation error:\n  {'type': 'json_invalid', 'loc': ('body', 1), 'msg': 'JSON decode error', 'input': {}, 'ctx': {'error': "


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, cpu_model: Path, server_type: Any) -> Iterator[Any]:
    one = server_type(tmp_path_factory.mktemp("host"), cpu_model, 1, CPU, "serve")
    one.start().wait_ready()
    yield one
    one.close()


def ask(server: Any, method: str, path: str, raw: Any = None, kind: str = "application/json") -> tuple[int, list[str], str]:
    """(status, header names in their order, body)."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    connection.request(method, path, raw, {"Content-Type": kind} if raw is not None else {})
    answer = connection.getresponse()
    seen = answer.status, [name for name, _value in answer.getheaders()], answer.read().decode()
    connection.close()
    return seen


def test_lines_in_order(server: Any) -> None:
    log, at = server.log, 0
    for text in ORDER:
        found = log.find(text, at)
        assert found >= 0, text
        at = found
    assert "sglang is using nccl" not in log and " TP0" not in log


def test_no_gpu_is_touched(server: Any) -> None:
    assert not list((server.machine / "gpus").iterdir())
    assert server.http("GET", "/v1/loads")[1]["accelerator"] is None


def test_titles_of_one_rank(server: Any) -> None:
    assert sorted(title for title in server.tree().values() if title.startswith("sglang::")) == ["sglang::detokenizer", "sglang::scheduler"]


@pytest.mark.parametrize(
    ("method", "path", "status", "headers", "body"),
    [
        ("GET", "/health", 200, EMPTY_PAGE, ""),
        ("GET", "/ready", 200, EMPTY_PAGE, ""),
        ("GET", "/", 200, JSON_PAGE, '"SGLang is running"'),
        ("GET", "/nothing", 404, JSON_PAGE, '{"detail":"Not Found"}'),
        ("GET", "/get_load", 404, JSON_PAGE, '{"detail":"Not Found"}'),
        ("POST", "/health", 405, ["date", "server", "allow", *JSON_PAGE[2:]], '{"detail":"Method Not Allowed"}'),
        ("PUT", "/v1/chat/completions", 405, ["date", "server", "allow", *JSON_PAGE[2:]], '{"detail":"Method Not Allowed"}'),
        ("GET", "/freeze_gc", 200, EMPTY_PAGE, "Garbage collection frozen.\n"),
        ("GET", "/v1/loads?include=nonsense", 500, ["date", "server", "content-length", "content-type"], "Internal Server Error"),
        ("GET", "/v1/models/nonsense", 404, JSON_PAGE, NO_MODEL),
    ],
)  # fmt: skip
def test_pages(server: Any, method: str, path: str, status: int, headers: list[str], body: str) -> None:
    assert ask(server, method, path) == (status, headers, body)


@pytest.mark.parametrize(
    ("path", "raw", "kind", "text"),
    [
        ("/generate", "{bad", "Bad Request", INVALID),
        ("/v1/completions", "{bad", "Bad Request", INVALID),
        ("/v1/chat/completions", "", "Bad Request", MISSING % ("", None)),
        ("/v1/completions", "{}", "Bad Request", MISSING % (" 'prompt'", "{}")),
        ("/v1/chat/completions", "{}", "Bad Request", MISSING % (" 'messages'", "{'tool_choice': 'none'}")),
        ("/v1/completions", "[]", "Bad Request", ONE % "model_attributes_type"),
        ("/generate", "[]", "Bad Request", ONE % "dataclass_type"),
        ("/v1/chat/completions", '{"messages":[]}', "BadRequestError", "Messages cannot be empty."),
        ("/v1/completions", '{"prompt":""}', "BadRequestError", "Prompt cannot be empty"),
        ("/v1/completions", '{"prompt":"x","max_tokens":0}', "Bad Request", ONE % "value_error"),
        ("/v1/completions", '{"prompt":"x","max_tokens":-1}', "Bad Request", ONE % "value_error"),
        ("/v1/chat/completions", USER % ("user", -1), "BadRequestError", "max_new_tokens must be"),
        ("/v1/chat/completions", USER % ("user", '"y"'), "Bad Request", ONE % "int_parsing"),
        ("/v1/chat/completions", '{"messages":"x"}', "Bad Request", ONE % "list_type"),
        ("/v1/chat/completions", USER % ("x", 1), "Bad Request", ONE % "value_error"),
        ("/v1/completions", '{"prompt":"%s"}' % ("w " * 3000), "BadRequestError", "The input (3000 tokens) is longer"),
    ],
)  # fmt: skip
def test_refused_bodies(server: Any, path: str, raw: str, kind: str, text: str) -> None:
    status, headers, body = ask(server, "POST", path, raw)
    answer = json.loads(body)
    assert (status, headers) == (400, JSON_PAGE)
    assert answer["message"].startswith(text)
    assert {**answer, "message": ""} == {"object": "error", "message": "", "type": kind, "param": None, "code": 400}


@pytest.mark.parametrize(
    ("raw", "error"),
    [
        ("{}", {"message": "Either text, input_ids or input_embeds should be provided."}),
        ('{"text":"x","sampling_params":{"temperature":-1}}', {"message": "temperature must be a non-negative finite number, got -1."}),
        ('{"text":"x","sampling_params":{"max_new_tokens":-1}}', {"message": "max_new_tokens must be at least 0, got -1."}),
    ],
)  # fmt: skip
def test_refused_by_generate(server: Any, raw: str, error: Any) -> None:
    assert json.loads(ask(server, "POST", "/generate", raw)[2]) == {"error": error}


def test_an_unknown_sampling_parameter(server: Any) -> None:
    status, _, body = ask(server, "POST", "/generate", '{"text":"x","sampling_params":{"zz":1}}')
    assert status == 400 and json.loads(body)["error"].startswith("unknown field `zz`, expected one of `max_new_tokens`, `stop`, ")


def test_only_json_is_read(server: Any) -> None:
    status, _, body = ask(server, "POST", "/v1/completions", '{"prompt":"x"}', "text/plain")
    assert status == 400 and "Unsupported Media Type: Only 'application/json' is allowed" in body


def test_any_model_name_is_served(server: Any) -> None:
    body = {"model": "unknown", "messages": [{"role": "user", "content": "x"}], "max_tokens": 0}
    code, answer = server.http("POST", "/v1/chat/completions", body)
    assert code == 200 and answer["model"] == "unknown"
    assert answer["choices"][0]["message"] == {"role": "assistant", "content": "", "reasoning_content": None}
    assert answer["usage"]["completion_tokens"] == 0 and answer["choices"][0]["finish_reason"] == "length"


def test_several_texts(server: Any) -> None:
    code, answers = server.http("POST", "/generate", {"text": ["a b", "c d e"], "sampling_params": {"max_new_tokens": 2}})
    assert code == 200 and [answer["meta_info"]["prompt_tokens"] for answer in answers] == [2, 3]


def events(server: Any, path: str, body: Any) -> tuple[list[str], list[Any]]:
    """Header names, and the events of a stream without [DONE]."""
    _, headers, text = ask(server, "POST", path, json.dumps({**body, "stream": True}))
    pieces = text.split("\n\n")
    assert pieces[-2:] == ["data: [DONE]", ""] and all(piece.startswith("data: ") for piece in pieces[:-1])
    return headers, [json.loads(piece[6:]) for piece in pieces[:-2]]


def test_chat_stream(server: Any) -> None:
    body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 3, "ignore_eos": True}
    headers, seen = events(server, "/v1/chat/completions", {**body, "stream_options": {"include_usage": True}})
    assert headers == ["date", "server", "content-type", "vary", "Transfer-Encoding"]
    assert seen[0]["choices"][0]["delta"] == {"reasoning_content": None, "role": "assistant", "content": ""}
    assert [*seen[0]] == ["id", "object", "created", "model", "choices"]
    assert seen[-2]["choices"] == [
        {"index": 0, "delta": {"reasoning_content": None}, "logprobs": None, "finish_reason": "length", "matched_stop": None}
    ]
    assert seen[-1]["choices"] == [] and seen[-1]["usage"]["completion_tokens"] == 3


def test_completion_stream(server: Any) -> None:
    _, seen = events(server, "/v1/completions", {"prompt": "x", "max_tokens": 3, "stream_options": {"include_usage": True}})
    assert seen[-2]["choices"][0]["finish_reason"] == "length" and seen[-2]["choices"][0]["text"]
    assert [*seen[-1]["usage"]] == ["prompt_tokens", "total_tokens", "completion_tokens", "reasoning_tokens"]
    assert {event["usage"] for event in seen[:-1]} == {None}


def test_native_stream_counts_up(server: Any) -> None:
    _, seen = events(server, "/generate", {"text": "one two three four", "sampling_params": {"max_new_tokens": 40}})
    counts = [event["meta_info"]["completion_tokens"] for event in seen]
    assert counts == sorted(counts) and counts[-1] == 40 and len(seen[-1]["output_ids"]) == 40
    assert seen[0]["meta_info"]["cached_tokens_details"] is None and "e2e_latency" not in seen[0]["meta_info"]
    _, again = events(server, "/generate", {"text": "one two three four", "sampling_params": {"max_new_tokens": 1}})
    assert again[0]["meta_info"]["cached_tokens_details"] == {"device": 3, "host": 0}


def test_a_stream_of_generate_refuses_inside(server: Any) -> None:
    _, seen = events(server, "/generate", {"text": "w " * 3000})
    text = "The input (3000 tokens) is longer than the model's context length (2048 tokens)."
    assert seen == [{"error": {"message": text, "type": "invalid_request_error", "code": 400, "retryable": False}}]


def test_infos(server: Any) -> None:
    code, info = server.http("GET", "/server_info")
    assert code == 200 and info["max_req_input_len"] == 2042 and info["chunked_prefill_size"] == 4096
    assert info["device"] == "cpu" and info["sampling_backend"] == "pytorch"
    assert info["cuda_graph_config"]["decode"]["backend"] == "disabled" and info["cuda_graph_backend_decode"] is None
    assert [*info["startup_time"]] == ["load_weight", "kv_cache_allocation", "scheduler_e2e", "cuda_graph", "tokenizer_e2e"]
    assert info["internal_states"][0]["memory_usage"]["token_capacity"] == 4096
    code, info = server.http("GET", "/model_info")
    assert info["disaggregation_mode"] == "null" and info["embedding"]["bcg"]["capture_token_budget"] == 4096


def test_loads_as_text(server: Any) -> None:
    status, headers, text = ask(server, "GET", "/v1/loads?format=prometheus")
    assert (status, headers) == (200, JSON_PAGE)
    assert '# TYPE sglang_max_total_num_tokens gauge\nsglang_max_total_num_tokens{dp_rank="0"} 4096\n' in text
    assert 'sglang_memory_token_capacity{dp_rank="0"} 4096' in text and 'sglang_disagg_kv_transfer_speed_gb_s{dp_rank="0"} 0.0' in text
    assert server.http("GET", "/v1/loads?dp_rank=3")[1]["loads"] == []
    assert "disaggregation" not in server.http("GET", "/v1/loads?include=core,memory")[1]["loads"][0]


def test_metrics(server: Any) -> None:
    events(server, "/generate", {"text": "a b c", "sampling_params": {"max_new_tokens": 4}})
    server.http("GET", "/nothing")
    status, headers, text = ask(server, "GET", "/metrics")
    assert status == 200 and headers == ["date", "server", "Content-Type", "vary", "Transfer-Encoding"]
    kinds = dict(line.split()[2:] for line in text.splitlines() if line.startswith("# TYPE"))
    assert len(kinds) == 84 and kinds["sglang:realtime_tokens_total"] == "counter" and kinds["sglang:queue_time_seconds"] == "histogram"
    rank = 'engine_type="unified",model_name="%s",moe_ep_rank="0",pp_rank="0",tp_rank="0"' % server.model
    assert "sglang:max_total_num_tokens{%s} 4096.0" % rank in text
    assert 'sglang:startup_time_seconds{engine_type="unified",model_name="%s",phase="scheduler_e2e"} ' % server.model in text
    assert 'sglang:generation_tokens_total{engine_type="unified",is_streaming="true",model_name="%s"} ' % server.model in text
    assert re.search(r'^sglang:http_responses_total\{endpoint="/nothing",method="GET",status_code="404"\} \d', text, re.M)
    assert 'sglang:http_requests_active{endpoint="/metrics",method="GET"} 1.0' in text


def test_a_stopped_detokenizer_and_the_trap_of_health(server: Any) -> None:
    """/health alone tells the truth; beside a page that the scheduler answers it says 200."""
    pid = server.child("sglang::detokenizer")
    os.kill(pid, signal.SIGSTOP)
    try:
        assert server.http("GET", "/health")[0] == 503
        assert [server.http("GET", page)[0] for page in ("/ready", "/ping", "/v1/models", "/v1/loads", "/metrics")] == [
            503,
            503,
            200,
            200,
            200,
        ]
        found: list[int] = []
        health = threading.Thread(target=lambda: found.append(server.http("GET", "/health")[0]))
        health.start()
        time.sleep(0.2)
        assert server.http("GET", "/server_info")[0] == 200
        health.join()
        assert found == [200]
    finally:
        os.kill(pid, signal.SIGCONT)
    assert server.http("GET", "/health")[0] == 200 and server.http("GET", "/ready")[0] == 200


def test_two_ranks(make_server: Callable[..., Any], cpu_model: Path) -> None:
    server = make_server(2, CPU, cpu_model).start().wait_ready()
    assert {"sglang::scheduler_TP0", "sglang::scheduler_TP1", "sglang::detokenizer"} < set(server.tree().values())
    for rank in range(2):
        assert "TP%d] Setup Custom allreduce failed with . To silence this warning," % rank in server.log
    assert server.log.count("Init Unified Radix Cache.") == 2 and server.log.count("max_total_num_tokens=4096") == 1


def test_idle_polling_is_a_setting(make_server: Callable[..., Any], cpu_model: Path) -> None:
    """The real schedulers are never idle for the kernel; ours sleep unless they are told otherwise."""
    server = make_server(1, CPU, cpu_model).start().wait_ready()
    pid = server.child("sglang::scheduler")

    def used() -> float:
        fields = Path("/proc/%d/stat" % pid).read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    before = used()
    time.sleep(1)
    assert used() - before < 0.3
    server.set("healthy", idle_poll=1)
    time.sleep(0.5)
    before, end = used(), time.monotonic() + 20
    while used() - before < 0.3 and time.monotonic() < end:
        time.sleep(0.2)
    assert used() - before >= 0.3
    assert server.generate()[0] == 200
