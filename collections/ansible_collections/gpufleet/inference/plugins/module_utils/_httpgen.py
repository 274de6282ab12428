# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. A real generation: the only proof that a server serves."""

from __future__ import annotations

import itertools
from typing import Any, Optional

from ansible_collections.gpufleet.inference.plugins.module_utils import _http

_WORDS = ("river", "stone", "light", "paper", "green", "house", "music", "winter")
_NO_SUCH_API = (400, 404, 405, 422)


def prompt(tokens: int) -> str:
    """Text of at least ``tokens`` tokens for any tokenizer: one short word is at least one token."""
    if tokens <= 0:
        return "Say hello."
    return " ".join(itertools.islice(itertools.cycle(_WORDS), tokens))


def generate(host: str, port: int, model: str, text: str, max_tokens: int, timeout: float, api_key: Optional[str] = None) -> dict[str, Any]:
    """Ask for ``max_tokens`` tokens through the chat API, or the completion API where the model has no chat template.

    :returns: ``result`` (ok, timeout, error, refused, garbage), ``tokens``, ``prompt_tokens``, ``seconds``, ``code``, ``error``.
    """
    common = {"model": model, "max_tokens": max_tokens, "temperature": 0, "stream": False}
    answer = _http.request(
        host, port, "/v1/chat/completions", timeout, {**common, "messages": [{"role": "user", "content": text}]}, api_key
    )
    if answer["result"] == "ok" and answer["code"] in _NO_SUCH_API:
        second = _http.request(host, port, "/v1/completions", max(timeout - answer["seconds"], 0.1), {**common, "prompt": text}, api_key)
        if second["result"] != "ok" or second["code"] == 200:
            answer = second
    return judge(answer)


def judge(answer: dict[str, Any]) -> dict[str, Any]:
    """What an answer of either API proves."""
    result, error = answer["result"], answer["error"]
    page = _http.document(answer)
    usage = page.get("usage")
    usage = usage if isinstance(usage, dict) else {}
    counted = usage.get("completion_tokens")
    tokens = counted if isinstance(counted, int) else 0
    if result == "ok" and answer["code"] != 200:
        result, error = "error", f"HTTP {answer['code']}: {answer['text'].strip()[:160]}"
    elif result == "ok" and not page:
        result, error = "garbage", "the answer is no JSON object"
    elif result == "ok":
        words = _text(page)
        if tokens < 1:
            result, error = "garbage", "no token was generated"
        elif len(words) >= 8 and len(set(words)) == 1:
            result, error = "garbage", f"the text is {words[0]!r} only"
    return {
        "result": result,
        "tokens": tokens if result in ("ok", "garbage") else 0,
        "prompt_tokens": usage.get("prompt_tokens"),
        "seconds": answer["seconds"],
        "code": answer["code"],
        "error": error,
    }


def _text(page: dict[str, Any]) -> str:
    """Generated text; a reasoning parser puts it beside the content."""
    choices = page.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
    message = choice.get("message")
    message = message if isinstance(message, dict) else {}
    parts = (choice.get("text"), message.get("reasoning_content"), message.get("content"))
    return "".join(part for part in parts if isinstance(part, str)).strip()
