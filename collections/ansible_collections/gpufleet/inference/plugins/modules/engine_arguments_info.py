# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Ask the installed engine whether it takes a command line."""

from __future__ import annotations

DOCUMENTATION = r"""
module: engine_arguments_info
short_description: Ask the parser of the installed engine about a command line
author:
  - gpufleet contributors (@gpufleet)
version_added: 1.0.0
description:
  - Imports the installed SGLang with its own interpreter and lets its own parser judge the arguments of a server, before anything of a
    running server is touched.
  - Needs neither a model nor a network. The child process sees no GPU, opens no port, and writes only into a directory that is removed
    again. So it can run beside a server that serves.
  - Only the parser is asked. It takes values that make no sense, such as port 99999; those are refused by
    P(gpufleet.inference.deployment#filter).
  - The module does not fail because of what it finds, see RV(status) and RV(accepted).
notes:
  - Importing the engine takes from 10 seconds to some minutes, by the load of the host, and one CPU core meanwhile.
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
  python:
    description: Interpreter that runs the engine, a path or a name.
    type: str
    required: true
  arguments:
    description:
      - Arguments of the server, without interpreter and entry point.
      - The path of a configuration file in C(--config) has to be absolute.
    type: list
    elements: str
    required: true
  environment:
    description:
      - Environment variables of the server. Some releases take other values by them.
      - Those that say where the engine writes to, such as caches, are left out.
    type: dict
    default: {}
  timeout:
    description: Seconds that import and check may take. The child is killed then, with everything that it started.
    type: float
    default: 300
"""

EXAMPLES = r"""
- name: Would the engine take these arguments?
  gpufleet.inference.engine_arguments_info:
    python: /opt/gpufleet/sglang-0.5.23/bin/python
    arguments: [--model-path, /models/kimi-k2.5, --tp-size, "8", --attention-backend, flashinfre]
  register: parsed

- name: Refuse what it does not take
  ansible.builtin.assert:
    that: parsed.accepted is true
    fail_msg: "{{ parsed.reason or parsed.problems | join('; ') }}"
"""

RETURN = r"""
status:
  description: V(ok) if the parser was asked, V(unavailable) if it could not be.
  type: str
  returned: always
  sample: ok
accepted:
  description: Whether the parser takes the arguments, null if it could not be asked.
  type: bool
  returned: always
  sample: false
problems:
  description: What it refuses, in its own words, one line per flag. An unknown flag comes with the flags that are written alike.
  type: list
  elements: str
  returned: always
  sample:
    - "argument --attention-backend: invalid choice: 'flashinfre' (choose from 'triton', 'flashinfer')"
    - "unrecognized arguments: --contxt-length (close to it: --context-length)"
abbreviations:
  description:
    - Flags that are not written in full. The parser takes them as long as no other flag begins like that, so the next release may not.
    - They are warned about and do not make RV(accepted) false.
  type: list
  elements: str
  returned: always
  sample: [--mem-fraction is read as --mem-fraction-static]
notes:
  description: What the parser says about arguments that it takes, such as a flag that is to go.
  type: list
  elements: str
  returned: always
  sample: ["'--disable-cuda-graph' is deprecated and will be removed in a future release."]
reason:
  description: Why the parser could not be asked, null if it was.
  type: str
  returned: always
  sample: "the engine can not be imported: ImportError: libcudart.so.13: cannot open shared object file"
stage:
  description:
    - What failed when RV(status) is V(unavailable), V(interpreter) (it does not run), V(import) (the engine does not import) or V(timeout)
      (nobody knows). Null otherwise.
  type: str
  returned: always
  sample: import
version:
  description: Version of the engine, null if it could not be told.
  type: str
  returned: always
  sample: 0.5.23
seconds:
  description: Wall time in seconds.
  type: float
  returned: always
  sample: 14.82
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufleet.inference.plugins.module_utils import _engine_parser, _redact


def main() -> None:
    """Read, ask, return."""
    module = AnsibleModule(
        argument_spec={
            "python": {"type": "str", "required": True},
            "arguments": {"type": "list", "elements": "str", "required": True},
            "environment": {"type": "dict", "default": {}},
            "timeout": {"type": "float", "default": 300.0},
        },
        supports_check_mode=True,
        # The arguments may hold the key of the API: they do not go into the host's log.
        no_log=True,
    )
    options = module.params
    if options["timeout"] <= 0:
        module.fail_json(msg=f"timeout: expected seconds above 0, found {options['timeout']}")
    module.no_log_values.update(_redact.secrets(options["arguments"], options["environment"]))
    try:
        result = _engine_parser.check(
            options["python"], options["arguments"], options["environment"], options["timeout"], module.tmpdir
        )  # fmt: skip
    except OSError as error:
        module.fail_json(msg=f"no directory for the check can be made: {error}")
    for line in result["abbreviations"]:
        module.warn(f"{line}; another release may read it otherwise, write it in full")
    module.exit_json(changed=False, **result)


if __name__ == "__main__":
    main()
