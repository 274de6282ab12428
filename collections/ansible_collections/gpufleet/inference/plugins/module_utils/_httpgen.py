# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. A real generation: the only proof that a server serves."""

from __future__ import annotations

import itertools
import json
from typing import Any, Optional

from ansible_collections.gpufleet.inference.plugins.module_utils import _http

_WORDS = ("river", "stone", "light", "paper", "green", "house", "music", "winter")
_NO_SUCH_API = (400, 404, 405, 422)


def prompt(tokens: int) -> str:
    """Text of at least ``tokens`` tokens for any tokenizer: one short word is at least one token."""
    if tokens <= 0:
        return "Say hello."
    return " ".join(itertools.islice(itertools.cycle(_WORDS), tokens))


def generate(
    host: str, port: int, model: str, text: str, max_tokens: int, timeout: float, api_key: Optional[str] = None, stream: bool = False
) -> dict[str, Any]:
    """Ask for ``max_tokens`` tokens through the chat API, or the completion API where the model has no chat template.

    :arg stream: take the tokens one by one, so that those which came before a timeout are counted.
    :returns: ``result`` (ok, timeout, error, refused, garbage), ``tokens``, ``prompt_tokens``, ``seconds``, ``code``, ``error``.
    """
    common: dict[str, Any] = {"model": model, "max_tokens": max_tokens, "temperature": 0, "stream": stream}
    if stream:
        common["stream_options"] = {"include_usage": True}
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
    page = _streamed(answer["text"]) or _http.document(answer)
    usage = page.get("usage")
    usage = usage if isinstance(usage, dict) else {}
    counted = usage.get("completion_tokens")
    tokens = counted if isinstance(counted, int) else 0
    if result == "ok" and answer["code"] != 200:
        result, error = "error", f"HTTP {answer['code']}: {answer['text'].strip()[:160]}"
    elif result == "ok" and page.get("error") and not tokens:
        result, error = "error", str(page["error"])[:200]
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
        "tokens": tokens if result in ("ok", "garbage", "timeout") else 0,
        "prompt_tokens": usage.get("prompt_tokens"),
        "seconds": answer["seconds"],
        "code": answer["code"],
        "error": error,
    }


def _streamed(text: str) -> dict[str, Any]:
    """The events of a streamed answer as one whole answer, as far as they came; empty if it is none."""
    words: list[str] = []
    page: dict[str, Any] = {}
    for line in text.splitlines() if text.startswith("data: ") else []:
        try:
            event = json.loads(line[6:]) if line.startswith("data: {") else None
        except (ValueError, RecursionError):
            continue
        if not isinstance(event, dict):
            continue
        page.update({key: event[key] for key in ("usage", "error") if event.get(key)})
        choices = event.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
        delta = choice.get("delta")
        said = _text({"choices": [{**choice, "message": delta if isinstance(delta, dict) else {}}]}, strip=False)
        if said:
            words.append(said)
    if not page and not words:
        return {}
    return {"usage": {"completion_tokens": len(words)}, **page, "choices": [{"text": "".join(words)}]}


def _text(page: dict[str, Any], strip: bool = True) -> str:
    """Generated text; a reasoning parser puts it beside the content."""
    choices = page.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
    message = choice.get("message")
    message = message if isinstance(message, dict) else {}
    parts = (choice.get("text"), message.get("reasoning_content"), message.get("content"))
    said = "".join(part for part in parts if isinstance(part, str))
    return said.strip() if strip else said
