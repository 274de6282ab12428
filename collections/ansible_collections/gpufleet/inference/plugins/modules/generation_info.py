# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Generate from prompts of chosen lengths."""

from __future__ import annotations

DOCUMENTATION = r"""
module: generation_info
short_description: Prove that a server generates
author:
  - gpufleet contributors (@gpufleet)
description:
  - Sends prompts of chosen lengths to the server and counts what comes back. A long prompt finds kernels that a short one never runs.
  - Prompts are made of common words. They have at least as many tokens as asked for.
extends_documentation_fragment:
  - gpufleet.inference.attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: none
  idempotent:
    support: full
options:
  host:
    description: Address of the server. An address that stands for all is reached through the loopback interface.
    type: str
    default: 127.0.0.1
  port:
    description: Port of the server.
    type: int
    default: 30000
  model:
    description: Name under which the model is served. Without it the first name that the server tells is used.
    type: str
  api_key:
    description: Key of the server's API.
    type: str
  tests:
    description: Generations to run, one after the other.
    type: list
    elements: dict
    default:
      - {name: short, prompt_tokens: 32, max_tokens: 16, timeout: 60}
    suboptions:
      name:
        description: Name of the result.
        type: str
        required: true
      prompt_tokens:
        description: Smallest length of the prompt in tokens.
        type: int
        default: 32
      max_tokens:
        description: Tokens to generate.
        type: int
        default: 16
      timeout:
        description: Seconds that the generation may take.
        type: float
        default: 60
"""

EXAMPLES = r"""
- name: Does the server answer short and long prompts?
  gpufleet.inference.generation_info:
    port: 30000
    model: kimi-k2.5
    tests:
      - {name: short, prompt_tokens: 16, max_tokens: 8, timeout: 60}
      - {name: long, prompt_tokens: 4096, max_tokens: 8, timeout: 120}
  register: gate
  failed_when: gate.results | rejectattr('ok') | length > 0
"""

RETURN = r"""
results:
  description: One result per test, in order. C(error) is null where C(ok) is true.
  type: list
  elements: dict
  returned: always
  sample:
    - {name: short, ok: true, tokens: 8, prompt_tokens: 21, seconds: 0.31, tokens_per_s: 25.8, error: null}
    - {name: long, ok: false, tokens: 0, prompt_tokens: null, seconds: 120.0, tokens_per_s: null, error: no answer within 120 s}
max_total_num_tokens:
  description: Room of the KV cache in tokens, null if the server does not tell.
  type: int
  returned: always
  sample: 163840
context_length:
  description: Longest request in tokens.
  type: int
  returned: always
  sample: 98304
attention_backend:
  description: Attention backend in effect.
  type: str
  returned: always
  sample: triton
version:
  description: Version of the engine.
  type: str
  returned: always
  sample: 0.5.23
"""

from typing import Any, Optional

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufleet.inference.plugins.module_utils import _http, _httpgen


def run_test(host: str, port: int, model: str, api_key: Optional[str], test: dict[str, Any]) -> dict[str, Any]:
    """Run one generation and judge it."""
    answer = _httpgen.generate(host, port, model, _httpgen.prompt(test["prompt_tokens"]), test["max_tokens"], test["timeout"], api_key)
    ok = answer["result"] == "ok"
    late = f"no answer within {test['timeout']:g} s" if answer["result"] == "timeout" else answer["result"]
    error = None if ok else answer["error"] or late
    return {
        "name": test["name"],
        "ok": ok,
        "tokens": answer["tokens"],
        "prompt_tokens": answer["prompt_tokens"],
        "seconds": answer["seconds"],
        "tokens_per_s": round(answer["tokens"] / answer["seconds"], 1) if ok and answer["seconds"] > 0 else None,
        "error": error,
    }


def main() -> None:
    """Generate, ask for the settings, return."""
    test_spec = {
        "name": {"type": "str", "required": True},
        "prompt_tokens": {"type": "int", "default": 32, "no_log": False},
        "max_tokens": {"type": "int", "default": 16, "no_log": False},
        "timeout": {"type": "float", "default": 60.0},
    }
    module = AnsibleModule(
        argument_spec={
            "host": {"type": "str", "default": "127.0.0.1"},
            "port": {"type": "int", "default": 30000},
            "model": {"type": "str"},
            "api_key": {"type": "str", "no_log": True},
            "tests": {
                "type": "list",
                "elements": "dict",
                "options": test_spec,
                "default": [{"name": "short", "prompt_tokens": 32, "max_tokens": 16, "timeout": 60}],
            },
        },
        supports_check_mode=True,
    )
    options = module.params
    host, port, api_key = _http.local(options["host"]), options["port"], options["api_key"]
    names = [] if options["model"] else _http.models(host, port, 10.0, api_key)["ids"]
    model = options["model"] or (names[0] if names else "default")
    results = [run_test(host, port, model, api_key, test) for test in options["tests"]]
    info = _http.server_info(host, port, 10.0, api_key)
    keys = ("max_total_num_tokens", "context_length", "attention_backend", "version")
    module.exit_json(changed=False, results=results, **{key: info[key] for key in keys})


if __name__ == "__main__":
    main()
