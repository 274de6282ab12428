# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the engine says about a request body that it can not read: 400 with the words of its validation library."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Optional

SOURCE = Path(__file__).parents[1] / "srt" / "entrypoints" / "http_server.py"
# path -> (line, function) of the endpoint, which the engine names in the text
ENDPOINTS = {
    "/generate": (928, "generate_request"),
    "/abort_request": (1721, "abort_request"),
    "/v1/completions": (1860, "openai_v1_completions"),
    "/v1/chat/completions": (1870, "openai_v1_chat_completions"),
}
ROLES = ("system", "assistant", "tool", "function", "developer", "latest_reminder", "root", "user")
# sampling parameters of /generate
SAMPLING = (
    "max_new_tokens", "stop", "stop_token_ids", "stop_regex", "temperature", "top_p", "top_k", "min_p", "frequency_penalty",
    "presence_penalty", "repetition_penalty", "min_new_tokens", "n", "json_schema", "regex", "ebnf", "structural_tag", "ignore_eos",
    "skip_special_tokens", "spaces_between_special_tokens", "no_stop_trim", "stream_interval", "logit_bias", "sampling_seed",
    "custom_params", "beam_width", "watermark", "choice",
)  # fmt: skip
INTEGERS = ("max_tokens", "max_completion_tokens", "n", "seed", "min_tokens", "top_k")
FLOATS = ("temperature", "top_p", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty")


class InvalidBodyError(Exception):
    """The body does not have the form of the request. ``text`` is the answer's message."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


class PlainError(Exception):
    """A body that /generate refuses with ``{"error": text}``."""


def refuse(path: str, problems: list[dict[str, Any]]) -> InvalidBodyError:
    """The error for ``problems``: entries of type, loc, msg, input and perhaps ctx."""
    line, function = ENDPOINTS[path]
    count = "%d validation error%s:" % (len(problems), "" if len(problems) == 1 else "s")
    listed = "".join("\n  %r" % problem for problem in problems)
    return InvalidBodyError('%s%s\n\n  File "%s", line %d, in %s\n    POST %s %r' % (count, listed, SOURCE, line, function, path, problems))


def problem(kind: str, where: tuple[Any, ...], message: str, value: Any, context: Optional[dict[str, Any]] = None) -> dict[str, Any]:
    """One entry of the list."""
    found = {"type": kind, "loc": ("body", *where), "msg": message, "input": value}
    return {**found, "ctx": context} if context else found


def read(path: str, raw: bytes, content_type: Optional[str]) -> dict[str, Any]:
    """The body of a request to ``path``. Raises InvalidBodyError or PlainError with the engine's words."""
    is_json = (content_type or "").split(";")[0].strip() == "application/json"
    if not is_json and path.startswith("/v1/"):
        entry = {
            "loc": ["header", "content-type"],
            "msg": "Unsupported Media Type: Only 'application/json' is allowed",
            "type": "value_error",
        }
        raise InvalidBodyError("1 validation error:\n  %r %r" % (entry, [entry]))
    if not raw:
        raise refuse(path, [problem("missing", (), "Field required", None)])
    body: Any = raw
    if is_json:
        try:
            body = json.loads(raw)
        except ValueError as error:
            context = {"error": getattr(error, "msg", str(error))}
            raise refuse(path, [problem("json_invalid", (getattr(error, "pos", 0),), "JSON decode error", {}, context)]) from None
    if not isinstance(body, dict):
        if path == "/generate":
            message, context = "Input should be a dictionary or an instance of GenerateReqInput", {"class_name": "GenerateReqInput"}
            raise refuse(path, [problem("dataclass_type", (), message, body, context)])
        message = "Input should be a valid dictionary or object to extract fields from"
        raise refuse(path, [problem("model_attributes_type", (), message, body)])
    problems = _native(body) if path == "/generate" else _openai(path, body) if path.startswith("/v1/") else []
    if problems:
        raise refuse(path, problems)
    return body


def _native(body: dict[str, Any]) -> list[dict[str, Any]]:
    text = body.get("text")
    if text is not None and not isinstance(text, (str, list)):
        return [
            problem("string_type", ("text", "str"), "Input should be a valid string", text),
            problem("list_type", ("text", "list[str]"), "Input should be a valid list", text),
        ]
    params = body.get("sampling_params") or {}
    unknown = [name for name in params if name not in SAMPLING] if isinstance(params, dict) else []
    if unknown:
        raise PlainError("unknown field `%s`, expected one of %s" % (unknown[0], ", ".join("`%s`" % name for name in SAMPLING)))
    return []


def _openai(path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    chat = path == "/v1/chat/completions"
    name = "messages" if chat else "prompt"
    if name not in body:
        # the engine fills this in before it looks for the field
        return [problem("missing", (name,), "Field required", {**body, "tool_choice": "none"} if chat and not body else body)]
    found = _messages(body[name]) if chat else []
    for field in INTEGERS:
        if _not_a_number(body.get(field), int):
            message = "Input should be a valid integer, unable to parse string as an integer"
            found.append(problem("int_parsing", (field,), message, body[field]))
    for field in FLOATS:
        if _not_a_number(body.get(field), float):
            message = "Input should be a valid number, unable to parse string as a number"
            found.append(problem("float_parsing", (field,), message, body[field]))
    if not chat and not found and body.get("max_tokens") is not None and int(body["max_tokens"]) < 1:
        error = ValueError("max_tokens must be positive")
        found.append(problem("value_error", ("max_tokens",), "Value error, %s" % error, body["max_tokens"], {"error": error}))
    return found


def _messages(messages: Any) -> list[dict[str, Any]]:
    if not isinstance(messages, list):
        return [problem("list_type", ("messages",), "Input should be a valid list", messages)]
    found = []
    for number, message in enumerate(messages):
        role = message.get("role") if isinstance(message, dict) else None
        if not isinstance(role, str) or role.lower() not in ROLES:
            error = ValueError("'role' must be one of %s (case-insensitive)." % ", ".join("%r" % known for known in ROLES[:-1]))
            found.append(problem("value_error", ("messages", number, "role"), "Value error, %s" % error, role, {"error": error}))
    return found


def _not_a_number(value: Any, kind: type) -> bool:
    if value is None or isinstance(value, (int, float)):
        return False
    try:
        kind(value)
    except (TypeError, ValueError):
        return True
    return False
