# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Request and answer shapes of /v1/chat/completions, /v1/completions and /generate."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from typing import Any, Callable, Optional

from sglang.emulator.frontend import BadRequestError, Frontend, count_tokens

CHAT_OVERHEAD = 8  # template tokens per message
IMAGE_TOKENS = 64
EOS = 163585


def prompts(path: str, body: dict[str, Any]) -> list[tuple[str, int]]:
    """(text, tokens) of each prompt of a request body, tokens roughly (see count_tokens). BadRequestError for nothing."""
    if path == "/v1/chat/completions":
        if not body["messages"]:
            raise BadRequestError("Messages cannot be empty.")
        total = sum(CHAT_OVERHEAD + _content_length(message.get("content")) for message in body["messages"])
        return [(json.dumps(body["messages"]), total)]
    prompt = body["prompt"] if path == "/v1/completions" else body.get("text", body.get("input_ids"))
    if prompt is None:
        raise BadRequestError("Either text, input_ids or input_embeds should be provided.")
    if path == "/v1/completions" and not prompt:
        raise BadRequestError("Prompt cannot be empty")
    many = isinstance(prompt, list) and bool(prompt) and not isinstance(prompt[0], int)
    each = prompt if many else [prompt]
    return [(json.dumps(one), len(one) if isinstance(one, list) else count_tokens(one)) for one in each]


def _content_length(content: Any) -> int:
    if isinstance(content, list):
        return sum(count_tokens(part["text"]) if part.get("type") == "text" else IMAGE_TOKENS for part in content)
    return count_tokens(content or "")


def limits(path: str, body: dict[str, Any]) -> tuple[Optional[int], bool]:
    """(max new tokens or None, ignore_eos). BadRequestError in the engine's words."""
    params = (body.get("sampling_params") or {}) if path == "/generate" else body
    limit = params.get("max_new_tokens", 128) if path == "/generate" else body.get("max_completion_tokens") or body.get("max_tokens")
    if limit is None and path == "/v1/completions":
        limit = 16
    if limit is not None and int(limit) < 0:
        raise BadRequestError("max_new_tokens must be at least 0, got %s." % limit)
    temperature = params.get("temperature")
    if temperature is not None and float(temperature) < 0:
        raise BadRequestError(
            "temperature must be a non-negative finite number, got %s." % (temperature if path == "/generate" else float(temperature))
        )
    return None if limit is None else int(limit), bool(params.get("ignore_eos"))


class Generation:
    """One request: runs it and shapes the answer, whole or as server-sent events."""

    def __init__(self, path: str, body: dict[str, Any], frontend: Frontend, connected: Callable[[], bool]) -> None:
        self.path, self.body, self.frontend, self.connected = path, body, frontend, connected
        self.streaming = bool(body.get("stream"))
        limit, ignore_eos = limits(path, body)
        self.plans = [frontend.plan(tokens, limit, ignore_eos, text) for text, tokens in prompts(path, body)]
        self.several = path == "/generate" and isinstance(body.get("text"), list)
        rid = body.get("rid")
        self.id = rid if isinstance(rid, str) and rid else uuid.uuid4().hex
        self.created, self.begun = int(time.time()), time.time()
        self.model = body.get("model") or "default"

    def _items(self, plan: dict[str, Any], rid: str) -> Iterator[dict[str, Any]]:
        return self.frontend.generate(plan, self.connected, rid, self.streaming)

    def _run(self, plan: dict[str, Any], rid: str) -> tuple[str, list[int], float]:
        text, ids, first = "", [], 0.0
        for item in self._items(plan, rid):
            first = first or time.time()
            text += item["text"]
            ids += item["tokens"]
        return text, ids, first

    def _usage(self, produced: int) -> dict[str, Any]:
        prompt = sum(plan["prompt"] for plan in self.plans)
        return {
            "prompt_tokens": prompt, "total_tokens": prompt + produced, "completion_tokens": produced, "prompt_tokens_details": None,
            "reasoning_tokens": 0, "completion_tokens_details": None,
        }  # fmt: skip

    def _native(
        self, plan: dict[str, Any], rid: str, text: str, ids: list[int], first: float, finished: bool, begins: bool = False
    ) -> dict[str, Any]:
        cached = plan["cached"]
        info: dict[str, Any] = {
            "id": rid, "finish_reason": None, "prompt_tokens": plan["prompt"], "weight_version": "default", "num_retractions": 0,
            "storage_prefetch_wait": 0.0, "storage_staging_wait": 0.0, "forward_entry_time": self.begun, "prefill_finished_time": first,
            "queue_time": 0.001, "reasoning_tokens": 0, "completion_tokens": len(ids), "cached_tokens": cached,
            "cached_tokens_details": {"device": cached, "host": 0} if cached else None, "dp_rank": None,
        }  # fmt: skip
        if begins or finished:
            info["response_sent_to_client_ts"] = first
        if finished:
            now = time.time()
            if plan["reason"] == "length":
                info["finish_reason"] = {"type": "length", "length": len(ids)}
            else:
                info["finish_reason"] = {"type": "stop", "matched": EOS}
            info.update({
                "weight_versions": [{"version": "default", "start": 0, "end": len(ids)}], "e2e_latency": now - self.begun,
                "request_received_ts": self.begun, "first_token_latency": first - self.begun, "api_server_dispatch_finish_ts": self.begun,
                "request_finished_ts": now, "decode_throughput": max(len(ids) - 1, 0) / max(now - first, 1e-3),
            })  # fmt: skip
        return {"text": text, "output_ids": ids, "meta_info": info}

    def whole(self) -> Any:
        """The answer in one piece."""
        if self.path == "/generate":
            answers = []
            for number, plan in enumerate(self.plans):
                rid = self.id if not number else uuid.uuid4().hex
                answers.append(self._native(plan, rid, *self._run(plan, rid), finished=True))
            return answers if self.several else answers[0]
        chat = self.path == "/v1/chat/completions"
        choices, produced = [], 0
        for number, plan in enumerate(self.plans):
            text, ids, _first = self._run(plan, self.id if not number else uuid.uuid4().hex)
            produced += len(ids)
            said = {"message": {"role": "assistant", "content": text, "reasoning_content": None}} if chat else {"text": text}
            choices.append({"index": number, **said, "logprobs": None, "finish_reason": plan["reason"], "matched_stop": None})
        return {
            "id": self.id, "object": "chat.completion" if chat else "text_completion", "created": self.created, "model": self.model,
            "choices": choices, "usage": self._usage(produced),
            "metadata": {"weight_version": "default", "weight_versions": [{"version": "default", "start": 0, "end": produced}]},
        }  # fmt: skip

    def events(self) -> Iterator[dict[str, Any]]:
        """The data of each server-sent event, without [DONE]. Only the first text of a request is streamed."""
        plan, chat = self.plans[0], self.path == "/v1/chat/completions"
        text, ids, first = "", [], 0.0
        if chat:
            yield self._chunk({"reasoning_content": None, "role": "assistant", "content": ""}, None)
        for item in self._items(plan, self.id):
            begins, first = not first, first or time.time()
            ids += item["tokens"]
            text += item["text"]
            if self.path == "/generate":
                yield self._native(plan, self.id, text, ids, first, item["finished"], begins)
            elif chat:
                yield self._chunk({"reasoning_content": None, "content": item["text"]}, None)
            else:
                yield self._chunk(item["text"], plan["reason"] if item["finished"] else None)
        if chat:
            yield self._chunk({"reasoning_content": None}, plan["reason"])
        if self.path != "/generate" and (self.body.get("stream_options") or {}).get("include_usage"):
            usage = self._usage(len(ids))
            if not chat:
                usage = {key: value for key, value in usage.items() if not key.endswith("_details")}
            yield {**self._chunk("", None), "choices": [], "usage": usage}

    def _chunk(self, content: Any, reason: Optional[str]) -> dict[str, Any]:
        chat = self.path == "/v1/chat/completions"
        choice = {"index": 0, "delta" if chat else "text": content, "logprobs": None, "finish_reason": reason, "matched_stop": None}
        kind = "chat.completion.chunk" if chat else "text_completion"
        chunk = {"id": self.id, "object": kind, "created": self.created, "model": self.model, "choices": [choice]}
        return chunk if chat else {**chunk, "usage": None}
