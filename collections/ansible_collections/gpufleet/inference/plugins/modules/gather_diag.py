# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Observe one inference server."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gather_diag
short_description: Diagnose an SGLang server on a GPU host
author:
  - gpufleet contributors (@gpufleet)
description:
  - Looks at the service, the processes, the port, the HTTP interface, the log, the kernel log, the GPUs and, where it is worth it,
    the system calls of one rank. Two samples O(window) seconds apart tell what moves.
  - The part on the controller judges what was seen and returns a verdict.
  - Each source is read within its own limit and answers C(ok), C(absent) or C(unavailable) with the reason, so a sick driver, a dead
    mount or missing rights cost that source only.
  - Changes nothing on the host except its own files under O(state_dir). It sends no signal, with one exception. A process that was not
    stopped before it was traced and is stopped afterwards is continued.
  - API keys, tokens and passwords are removed before anything leaves the host.
  - Options that are not set are taken from C(manifest.json) under O(state_dir).
  - Where nothing was ever deployed, the server that runs is looked for by its command line, and tells its directory, port and log itself.
    Of several that could be meant none is chosen, and a warning names them.
extends_documentation_fragment:
  - gpufleet.inference.attributes
attributes:
  check_mode:
    support: full
    details: In check mode nothing is written under O(state_dir) either.
  diff_mode:
    support: none
  idempotent:
    support: full
options:
  deadline:
    description: Seconds after which the module returns with what it has. Saving files with O(bundle=true) gets at least 20 more.
    type: float
    default: 45
  window:
    description: Seconds between the two samples.
    type: float
    default: 5
  depth:
    description:
      - V(quick) traces nothing. V(deep) traces the system calls of the first rank for one to two seconds with C(strace), or reads the
        kernel's view of its threads without it.
      - V(auto) is V(deep) only where the port is closed although the server's process is alive, or where a generation fails.
    type: str
    choices: [auto, quick, deep]
    default: auto
  probe:
    description: V(generate) asks the server for a few tokens. V(none) reads pages and counters only.
    type: str
    choices: [generate, none]
    default: generate
  generate_timeout:
    description: Seconds that the generation may take, at most 10.
    type: float
    default: 10
  state_dir:
    description: Directory on the host that holds its manifest and its records.
    type: path
    default: /var/lib/gpufleet
  service_manager:
    description: What starts the server. V(existing) is a server started by hand.
    type: str
    choices: [systemd, supervisor, existing]
  service_name:
    description: Name of the systemd unit or of the supervisor program.
    type: str
  supervisor_conf:
    description: Configuration file of the supervisord that runs the server.
    type: path
  port:
    description: Port of the server.
    type: int
  bind:
    description: Address that the server binds to.
    type: str
  log_path:
    description: File that holds the standard output and error of the server.
    type: path
  model_path:
    description: Directory of the model, to look at the room on its disk.
    type: path
  work_dir:
    description: Working directory of the server. It tells the server's processes from those of another server on the host.
    type: path
  kernel_log_path:
    description: Saved kernel log to read instead of the kernel's own buffer.
    type: path
  nvidia_smi:
    description: Path or name of C(nvidia-smi).
    type: str
    default: nvidia-smi
  gpus_expected:
    description: Number of GPUs that the host should have.
    type: int
  patterns:
    description:
      - Named regular expressions to look for, as the lists C(log) and C(kernel) of dictionaries with C(name) and C(regex).
      - The part on the controller fills this from its signatures.
    type: dict
    default: {}
  record_visit:
    description: Whether to add a small summary of this look to C(visits.json) under O(state_dir).
    type: bool
    default: true
  bundle:
    description: Whether to write the evidence as files into C(diag/) under O(state_dir). The last 20 are kept.
    type: bool
    default: false
  return_snapshot:
    description: Whether to return the whole snapshot. Used on the controller only.
    type: bool
    default: false
  return_records:
    description: Whether to return RV(records), RV(target), RV(active), RV(at) and RV(gates). Used on the controller only.
    type: bool
    default: false
  policy:
    description: Overrides of the thresholds that the verdict rests on. Used on the controller only.
    type: dict
  signatures_extra:
    description: Files or directories on the controller with more signatures. Used on the controller only.
    type: list
    elements: path
notes:
  - Without root, sources that need it are C(unavailable) and named in the verdict.
seealso:
  - module: gpufleet.inference.wait_ready
  - module: gpufleet.inference.analyze_bundle
"""

EXAMPLES = r"""
- name: What is wrong with the servers?
  gpufleet.inference.gather_diag:

- name: Keep all evidence before a repair
  gpufleet.inference.gather_diag:
    depth: deep
    bundle: true
  register: before

- name: A server started by hand
  gpufleet.inference.gather_diag:
    service_manager: existing
    port: 8000
    log_path: /root/sglang.log
"""

RETURN = r"""
verdict:
  description: What is wrong, why, and what to do.
  type: dict
  returned: success
  sample:
    state: stuck
    phase: weights_loading
    cause: sm120_unsupported_backend
    confidence: low
    action: reconfigure
    reasons:
      - {source: log, quote: "Multi-thread loading shards: 100% Completed | 64/64", means: all shards are read}
    missing: [stacks, nccl]
summary:
  description: The verdict in one line.
  type: str
  returned: success
  sample: "stuck in weights_loading for 12 min: attention backend flashinfer may not run on this GPU (low)"
facts:
  description: A few facts about the host.
  type: dict
  returned: success
  sample: {service: running, main_pid: 4711, profile: flashinfer, gpus: 8}
bundle:
  description: Directory on the host with the evidence.
  type: str
  returned: when O(bundle=true)
  sample: /var/lib/gpufleet/diag/20260129T003520Z
snapshot:
  description: Everything that was seen, by source.
  type: dict
  returned: when O(return_snapshot=true)
  sample: {schema: 1, port: {status: ok, listening: false, owner_pid: null, ours: null}}
records:
  description: The host's records.
  type: dict
  returned: when O(return_records=true)
  sample: {marks: null, fallback: null}
target:
  description: What runs, or should run, on the host.
  type: dict
  returned: when O(return_records=true)
  sample: {port: 30000, profile: triton_nccl_tuned, engine_version: 0.5.23}
active:
  description: Fallback and marks that still bind.
  type: dict
  returned: when O(return_records=true)
  sample: {fallback: null, marks: []}
at:
  description: When this was seen, by the host's own clock, in seconds since the epoch. The times in RV(records) are of the same clock.
  type: float
  returned: when O(return_records=true)
  sample: 1769650520.1
gates:
  description: Whether the sources that a destructive action needs could be read.
  type: dict
  returned: when O(return_records=true)
  sample: {processes: true, kernel: true, gpus: true}
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufleet.inference.plugins.module_utils import _bounded, _bundle, _records, _snapshot, _visits

CONTROLLER_ONLY = ("return_snapshot", "return_records", "policy", "signatures_extra")


def argument_spec() -> dict[str, Any]:
    """All documented options; those in CONTROLLER_ONLY never get here, the action takes them out."""
    return {
        "deadline": {"type": "float", "default": 45.0},
        "window": {"type": "float", "default": 5.0},
        "depth": {"type": "str", "choices": ["auto", "quick", "deep"], "default": "auto"},
        "probe": {"type": "str", "choices": ["generate", "none"], "default": "generate"},
        "generate_timeout": {"type": "float", "default": 10.0},
        "state_dir": {"type": "path", "default": "/var/lib/gpufleet"},
        "service_manager": {"type": "str", "choices": ["systemd", "supervisor", "existing"]},
        "service_name": {"type": "str"},
        "supervisor_conf": {"type": "path"},
        "port": {"type": "int"},
        "bind": {"type": "str"},
        "log_path": {"type": "path"},
        "model_path": {"type": "path"},
        "work_dir": {"type": "path"},
        "kernel_log_path": {"type": "path"},
        "nvidia_smi": {"type": "str", "default": "nvidia-smi"},
        "gpus_expected": {"type": "int"},
        "patterns": {"type": "dict", "default": {}},
        "record_visit": {"type": "bool", "default": True},
        "bundle": {"type": "bool", "default": False},
        "return_snapshot": {"type": "bool", "default": False},
        "return_records": {"type": "bool", "default": False},
        "policy": {"type": "dict"},
        "signatures_extra": {"type": "list", "elements": "path"},
    }


def record(state_dir: str, snapshot: dict[str, Any]) -> None:
    """Add the visit to the host's records."""
    _records.update(state_dir, "visits", lambda old: _visits.add(old, _visits.visit(snapshot)), discard_unreadable=True)


def main() -> None:
    """Collect, remember, return."""
    module = AnsibleModule(argument_spec=argument_spec(), supports_check_mode=True)
    options = module.params
    unexpected = [name for name in CONTROLLER_ONLY if options[name]]
    if unexpected:
        module.fail_json(msg=f"{', '.join(unexpected)}: known to the action on the controller only")
    collector = _snapshot.Snapshot(options)
    snapshot = collector.collect()
    bundle = None
    if collector.puzzle:
        module.warn(collector.puzzle)
    if options["record_visit"] and not module.check_mode:
        problem = _bounded.call(lambda _emit: record(options["state_dir"], snapshot), collector.left(2.0)).reason()
        if problem:
            module.warn(f"the visit is not recorded: {problem}")
    if options["bundle"] and not module.check_mode:
        # Evidence is worth more than the deadline.
        arguments = (options["state_dir"], snapshot, collector.texts, collector.secrets)
        outcome = _bounded.call(lambda emit: emit({"bundle": _bundle.write(*arguments)}), collector.left(20.0))
        bundle = outcome.values.get("bundle")
        if bundle is None:
            module.warn(f"the evidence is not saved: {outcome.reason()}")
    module.exit_json(changed=False, snapshot=snapshot, bundle=bundle)


if __name__ == "__main__":
    main()
