# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import time

import pytest
from ansible_collections.gpufleet.inference.plugins.module_utils import _bounded, _http, _httpgen, _probes

METRICS = """# HELP sglang:realtime_tokens_total x
sglang:realtime_tokens_total{mode="decode",tp_rank="0"} 100.0
sglang:realtime_tokens_total{mode="prefill_compute"} 50
sglang:num_running_reqs{model_name="m"} 2.0
sglang:num_queue_reqs 0.0
other_metric 5
"""


def chat(tokens=4, text="hello there", **more):
    return 200, {"choices": [{"message": {"content": text, **more}}], "usage": {"completion_tokens": tokens, "prompt_tokens": 9}}


def drip(handler):
    handler.send_response(200)
    handler.end_headers()
    for _number in range(100):
        handler.wfile.write(b"x")
        handler.wfile.flush()
        time.sleep(0.1)


def generate(door, timeout=5.0):
    return _httpgen.generate("127.0.0.1", door.server_port, "m", "hi", 4, timeout)


def test_a_generation_counts_tokens(serve):
    answer = generate(serve({"/v1/chat/completions": chat()}))
    assert (answer["result"], answer["tokens"], answer["prompt_tokens"]) == ("ok", 4, 9)


def test_reasoning_text_counts_too(serve):
    assert generate(serve({"/v1/chat/completions": chat(text=None, reasoning_content="thinking")}))["result"] == "ok"


def test_a_model_without_chat_template(serve):
    door = serve(
        {
            "/v1/chat/completions": (400, "no template"),
            "/v1/completions": (200, {"choices": [{"text": "x y"}], "usage": {"completion_tokens": 2}}),
        }
    )
    assert generate(door)["result"] == "ok"
    assert [path for _verb, path, _body, _at in door.seen] == ["/v1/chat/completions", "/v1/completions"]


@pytest.mark.parametrize(
    ("answer", "result"),
    [
        (chat(tokens=0), "garbage"),
        (chat(text="!!!!!!!!!!!!"), "garbage"),
        ((200, "no json"), "garbage"),
        ((503, "loading"), "error"),
        ((500, "x"), "error"),
    ],
)
def test_answers_that_prove_nothing(serve, answer, result):
    assert generate(serve({"/v1/chat/completions": answer}))["result"] == result


def test_silence_and_dripping_end_at_the_limit(serve):
    door = serve({"/v1/chat/completions": lambda handler: time.sleep(3), "/drip": drip})
    assert generate(door, 0.4)["result"] == "timeout"
    began = time.monotonic()
    assert _http.request("127.0.0.1", door.server_port, "/drip", 0.5)["result"] == "timeout"
    assert time.monotonic() - began < 1.5


def chunk(text, **more):
    return {"choices": [{"index": 0, "delta": {"reasoning_content": None, "content": text}, "finish_reason": None}], **more}


def stream(*events, pause=0.0):
    """A streamed answer in the engine's form; ``pause`` seconds before its last event."""

    def answer(handler):
        handler.send_response(200)
        handler.send_header("Content-Type", "text/event-stream; charset=utf-8")
        handler.end_headers()
        for number, event in enumerate(events):
            time.sleep(pause if number == len(events) - 1 else 0)
            handler.wfile.write(b"data: " + (event if isinstance(event, bytes) else json.dumps(event).encode()) + b"\n\n")
            handler.wfile.flush()

    return answer


def streamed(door, timeout=5.0):
    return _httpgen.generate("127.0.0.1", door.server_port, "m", "hi", 4, timeout, stream=True)


def test_a_streamed_generation_counts_tokens(serve):
    usage = {"choices": [], "usage": {"prompt_tokens": 16, "total_tokens": 20, "completion_tokens": 4}}
    door = serve({"/v1/chat/completions": stream(chunk(""), chunk("ate"), chunk(" model"), usage, b"[DONE]")})
    answer = streamed(door)
    assert (answer["result"], answer["tokens"], answer["prompt_tokens"]) == ("ok", 4, 16)
    assert door.seen[0][2]["stream_options"] == {"include_usage": True}


def test_tokens_that_came_before_the_limit_are_counted(serve):
    """Seen on the real engine on a full machine: the first token came after 8 s, the fourth after 12 s."""
    door = serve({"/v1/chat/completions": stream(chunk(""), chunk("ate"), chunk(" model"), chunk("L"), pause=3)})
    answer = streamed(door, 1.0)
    assert (answer["result"], answer["tokens"]) == ("timeout", 2)


def test_a_stream_that_only_says_what_went_wrong(serve):
    door = serve({"/v1/chat/completions": stream({"error": {"message": "out of memory"}}, b"[DONE]")})
    answer = streamed(door)
    assert answer["result"] == "error" and "out of memory" in answer["error"]


def test_a_server_that_does_not_stream_is_understood(serve):
    answer = streamed(serve({"/v1/chat/completions": chat()}))
    assert (answer["result"], answer["tokens"], answer["prompt_tokens"]) == ("ok", 4, 9)


def test_nobody_listens(free_port):
    assert _http.health("127.0.0.1", free_port(), 2)["result"] == "refused"


def test_pages(serve):
    info = {
        "attention_backend": "triton",
        "version": "0.5.23",
        "api_key": "topsecret1",
        "internal_states": [{"max_total_num_tokens": 4578}],
    }
    door = serve({"/health": (503, ""), "/v1/models": (200, {"data": [{"id": "kimi", "max_model_len": 7}]}), "/server_info": (200, info)})
    assert _http.health("127.0.0.1", door.server_port, 2)["result"] == "unavailable"
    assert _http.models("127.0.0.1", door.server_port, 2)["ids"] == ["kimi"]
    seen = _http.server_info("127.0.0.1", door.server_port, 2)
    assert (seen["max_total_num_tokens"], seen["attention_backend"]) == (4578, "triton") and "topsecret1" not in str(seen)


def test_metrics_are_summed():
    assert _http.parse_metrics(METRICS) == {
        "realtime_tokens_total": 150.0, "num_running_reqs": 2.0, "num_queue_reqs": 0.0, "http_requests_active": None,
        "decode_tokens_total": 100.0,
    }  # fmt: skip


def test_local_addresses():
    assert [_http.local(bind) for bind in (None, "0.0.0.0", "::", "10.0.0.1")] == ["127.0.0.1", "127.0.0.1", "::1", "10.0.0.1"]


def test_a_frozen_server_is_asked_for_health_only_after_the_generation(serve):
    door = serve({"/v1/chat/completions": lambda handler: time.sleep(3), "/health": (200, ""), "/metrics": (200, METRICS)})
    first = _bounded.call(lambda emit: _probes.first("127.0.0.1", door.server_port, 0.2, 0.5, "m", None, True, emit), 10)
    counted = first.values["metrics"]["first"]
    after = _bounded.call(lambda emit: _probes.after_failure("127.0.0.1", door.server_port, None, 5.0, counted, emit), 10)
    part = _probes.combine([first, after], True)
    assert (part["generate"]["result"], part["health"]["result"], part["metrics"]["tokens_delta"]) == ("timeout", "ok", 0)
    order = [path for _verb, path, _body, _at in door.seen]
    assert order == ["/metrics", "/v1/chat/completions", "/metrics", "/health", "/metrics", "/v1/models", "/server_info"]


def test_a_killed_probe_is_a_timeout(serve):
    door = serve({"/metrics": lambda handler: time.sleep(3)})
    outcome = _bounded.call(lambda emit: _probes.first("127.0.0.1", door.server_port, 0.2, 9.0, "m", None, True, emit), 0.5)
    assert _probes.combine([outcome], True)["generate"]["result"] == "timeout"


@pytest.mark.parametrize("value", ["e", "1.2.3", "--", "NaN", "+Inf", "1e999"])
def test_a_counter_that_is_no_number_costs_only_itself(value):
    page = _http.parse_metrics(f"sglang:realtime_tokens_total {value}\nsglang:num_running_reqs 2\n")
    assert (page["realtime_tokens_total"], page["num_running_reqs"]) == (None, 2.0)


@pytest.mark.parametrize("tokens", ["4", [], {}, None, 4.5])
@pytest.mark.parametrize("page", [{"usage": {"completion_tokens": "TOKENS"}}, {"usage": "TOKENS"}, {"choices": "TOKENS"}])
def test_an_answer_of_other_types_is_garbage(serve, page, tokens):
    filled = {key: dict.fromkeys(value, tokens) if isinstance(value, dict) else tokens for key, value in page.items()}
    assert generate(serve({"/v1/chat/completions": (200, filled)}))["result"] == "garbage"


def test_a_deeply_nested_answer_is_garbage(serve):
    door = serve(dict.fromkeys(("/v1/chat/completions", "/v1/models", "/server_info"), (200, "[" * 100_000)))
    assert generate(door)["result"] == "garbage" and _http.models("127.0.0.1", door.server_port, 5.0)["ids"] == []
