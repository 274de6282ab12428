# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Request and answer shapes of /v1/chat/completions, /v1/completions and /generate."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from typing import Any, Callable, Optional

from sglang.emulator.frontend import BadRequestError, Frontend, count_tokens

CHAT_OVERHEAD = 8  # template tokens per message
IMAGE_TOKENS = 64


def prompt_length(path: str, body: dict[str, Any]) -> int:
    """Prompt tokens of a request body, roughly (see count_tokens)."""
    if path == "/v1/chat/completions":
        messages = body.get("messages")
        if not isinstance(messages, list) or not messages:
            raise BadRequestError("messages: Field required")
        return sum(CHAT_OVERHEAD + _content_length(message.get("content")) for message in messages)
    prompt = body.get("prompt") if path == "/v1/completions" else body.get("text", body.get("input_ids"))
    if prompt is None:
        raise BadRequestError("prompt: Field required")
    if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
        prompt = prompt[0]
    return len(prompt) if isinstance(prompt, list) else count_tokens(prompt)


def _content_length(content: Any) -> int:
    if isinstance(content, list):
        return sum(count_tokens(part["text"]) if part.get("type") == "text" else IMAGE_TOKENS for part in content)
    return count_tokens(content or "")


def limits(path: str, body: dict[str, Any]) -> tuple[Optional[int], bool]:
    """(max new tokens or None, ignore_eos)."""
    if path == "/generate":
        params = body.get("sampling_params") or {}
        return params.get("max_new_tokens", 128), bool(params.get("ignore_eos"))
    limit = body.get("max_completion_tokens") or body.get("max_tokens")
    if limit is None and path == "/v1/completions":
        limit = 16
    if limit is not None and (not isinstance(limit, int) or limit < 1):
        raise BadRequestError("max_tokens must be at least 1, got %s." % limit)
    return limit, bool(body.get("ignore_eos"))


class Generation:
    """One request: runs it and shapes the answer, whole or as server-sent events."""

    def __init__(self, path: str, body: dict[str, Any], frontend: Frontend, connected: Callable[[], bool]) -> None:
        self.path, self.body, self.frontend, self.connected = path, body, frontend, connected
        limit, ignore_eos = limits(path, body)
        self.plan = frontend.plan(prompt_length(path, body), limit, ignore_eos)
        self.id = uuid.uuid4().hex
        self.created, self.started = int(time.time()), time.monotonic()
        self.model = body.get("model") or frontend.args["served_model_name"]

    def _items(self) -> Iterator[dict[str, Any]]:
        return self.frontend.generate(self.plan, self.connected, self.id)

    def _usage(self, produced: int) -> dict[str, Any]:
        prompt = self.plan["prompt"]
        return {"prompt_tokens": prompt, "total_tokens": prompt + produced, "completion_tokens": produced, "prompt_tokens_details": None}

    def _native(self, text: str, ids: list[int], finished: bool) -> dict[str, Any]:
        reason = (
            {"type": self.plan["reason"], "length": len(ids)} if self.plan["reason"] == "length" else {"type": "stop", "matched": 163585}
        )
        return {
            "text": text,
            "output_ids": ids,
            "meta_info": {
                "id": self.id,
                "finish_reason": reason if finished else None,
                "prompt_tokens": self.plan["prompt"],
                "weight_version": "default",
                "completion_tokens": len(ids),
                "cached_tokens": 0,
                "e2e_latency": time.monotonic() - self.started,
            },
        }  # fmt: skip

    def whole(self) -> dict[str, Any]:
        """The answer in one piece."""
        items = list(self._items())
        text = "".join(item["text"] for item in items)
        ids = [token for item in items for token in item["tokens"]]
        if self.path == "/generate":
            return self._native(text, ids, True)
        chat = self.path == "/v1/chat/completions"
        choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": self.plan["reason"], "matched_stop": None}
        if chat:
            choice["message"] = {"role": "assistant", "content": text, "reasoning_content": None, "tool_calls": None}
        else:
            choice["text"] = text
        return {
            "id": self.id, "object": "chat.completion" if chat else "text_completion", "created": self.created, "model": self.model,
            "choices": [choice], "usage": self._usage(len(ids)), "metadata": {"weight_version": "default"},
        }  # fmt: skip

    def events(self) -> Iterator[dict[str, Any]]:
        """The data of each server-sent event, without [DONE]."""
        text, ids = "", []
        chat = self.path == "/v1/chat/completions"
        options = self.body.get("stream_options") or {}
        if chat:
            yield self._chunk({"role": "assistant", "content": ""}, None)
        for item in self._items():
            ids += item["tokens"]
            text += item["text"]
            if self.path == "/generate":
                yield self._native(text, ids, item["finished"])
            else:
                yield self._chunk({"content": item["text"]} if chat else item["text"], None)
        if self.path != "/generate":
            yield self._chunk({} if chat else "", self.plan["reason"])
            if options.get("include_usage"):
                yield {**self._chunk("", None), "choices": [], "usage": self._usage(len(ids))}

    def _chunk(self, content: Any, reason: Optional[str]) -> dict[str, Any]:
        chat = self.path == "/v1/chat/completions"
        choice = {"index": 0, "delta" if chat else "text": content, "logprobs": None, "finish_reason": reason, "matched_stop": None}
        kind = "chat.completion.chunk" if chat else "text_completion"
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model, "choices": [choice], "usage": None}
