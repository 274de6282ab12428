# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Keep one of the records that live on the host."""

from __future__ import annotations

DOCUMENTATION = r"""
module: host_record
short_description: Keep a record about the inference server on its host
author:
  - gpufleet contributors (@gpufleet)
description:
  - Writes the manifest, the adopted server, the last known good configuration, the active fallback, repair attempts and marks of a host
    as JSON files in O(state_dir), where they survive a reboot and a controller that forgets.
  - A file is replaced atomically while the directory is locked.
extends_documentation_fragment:
  - gpufleet.inference.attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
  idempotent:
    support: full
options:
  state_dir:
    description: Directory of the records, created with mode 0700 when missing.
    type: path
    default: /var/lib/gpufleet
  name:
    description: Which record.
    type: str
    required: true
    choices: [manifest, adoption, last_known_good, fallback, attempts, marks]
  state:
    description:
      - V(present) makes the record equal to O(content). Times and measurements (C(written_at), C(since), C(expires), C(gate))
        do not count as a difference.
      - V(appended) adds O(content) to the list of V(attempts) or V(marks). An entry with the same C(id) (attempts), or the
        same C(kind) and C(owner) (marks), is merged with it instead.
      - V(absent) removes the entries that agree with every key of O(content), or the whole record without O(content).
    type: str
    default: present
    choices: [present, appended, absent]
  content:
    description: The content of the record, or of the entry.
    type: dict
  ttl:
    description: When given, C(expires) of the content is set to that many seconds from now, by the clock of the host.
    type: float
"""

EXAMPLES = r"""
- name: Take a host out of rotation for a day
  gpufleet.inference.host_record:
    name: marks
    state: appended
    content:
      kind: maintenance
      owner: alice
      reason: new riser card
    ttl: 86400

- name: Lift it again
  gpufleet.inference.host_record:
    name: marks
    state: absent
    content:
      kind: maintenance
      owner: alice
"""

RETURN = r"""
record:
  description: The record after the task, V(null) when there is none. In check mode what it would be.
  returned: success
  type: dict
  sample: {"marks": [{"kind": "maintenance", "owner": "alice", "reason": "new riser card"}], "schema": 1}
"""

import json
import time
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufleet.inference.plugins.module_utils import _records

LISTS: dict[str, Any] = {"attempts": ("id",), "marks": ("kind", "owner")}
MAX_ENTRIES = 200
VOLATILE = ("schema", "written_at", "since", "expires", "gate")


def stamped(name: str, content: dict[str, Any], ttl: float | None, now: float) -> dict[str, Any]:
    """O(content) with the times that this record carries, O(now) and O(ttl) in seconds."""
    times = {{"attempts": "at", "marks": "since", "fallback": "since", "adoption": "since"}.get(name, "written_at"): now}
    if ttl is not None:
        times["expires"] = now + ttl
    return dict(times, **content)


def present(current: dict[str, Any] | None, content: dict[str, Any]) -> dict[str, Any]:
    """The new record, which is the current one when they differ in nothing that lasts."""
    if current is not None and _lasting(current) == _lasting(content):
        return current
    return content


def appended(name: str, current: dict[str, Any] | None, entry: dict[str, Any]) -> dict[str, Any]:
    """The record with O(entry) at its end, or merged into the entry that has the same identity."""
    entries: list[dict[str, Any]] = list((current or {}).get(name) or [])
    identity = {key: entry.get(key) for key in LISTS[name]}
    for index, known in enumerate(entries):
        if _agrees(known, identity) and None not in identity.values():
            entries[index] = dict(known, **entry)
            return {name: entries}
    return {name: ([*entries, entry])[-MAX_ENTRIES:]}


def absent(name: str, current: dict[str, Any] | None, pattern: dict[str, Any] | None) -> dict[str, Any] | None:
    """The record without the entries that agree with O(pattern); None (no record) without a pattern."""
    if current is None or not pattern:
        return None
    if name not in LISTS:
        return None if _agrees(current, pattern) else current
    return {name: [entry for entry in current.get(name) or [] if not _agrees(entry, pattern)]}


def main() -> None:
    """Entry point."""
    module = AnsibleModule(
        argument_spec={
            "state_dir": {"type": "path", "default": "/var/lib/gpufleet"},
            "name": {
                "type": "str",
                "required": True,
                "choices": ["manifest", "adoption", "last_known_good", "fallback", "attempts", "marks"],
            },
            "state": {"type": "str", "default": "present", "choices": ["present", "appended", "absent"]},
            "content": {"type": "dict"},
            "ttl": {"type": "float"},
        },
        required_if=[("state", "present", ("content",)), ("state", "appended", ("content",))],
        supports_check_mode=True,
    )
    name, state, content = module.params["name"], module.params["state"], module.params["content"]
    if state == "appended" and name not in LISTS:
        module.fail_json(msg=f"state=appended needs a record with a list ({', '.join(LISTS)}), not {name}")
    now = time.time()

    def change(current: dict[str, Any] | None) -> dict[str, Any] | None:
        if state == "absent":
            return absent(name, current, content)
        if state == "present":
            return present(current, stamped(name, content, module.params["ttl"], now))
        known = any(_agrees(entry, {key: content.get(key) for key in LISTS[name]}) for entry in (current or {}).get(name) or [])
        entry = dict(content) if known and module.params["ttl"] is None else stamped(name, content, module.params["ttl"], now)
        return appended(name, current, entry)

    state_dir = module.params["state_dir"]
    try:
        before = _before(state_dir, name, state)
        if module.check_mode:
            after = change(before)
        elif before is None and state == "absent":
            after = None
        else:
            after = _records.update(state_dir, name, change, discard_unreadable=state == "present")
    except _records.RecordError as error:
        module.fail_json(msg=str(error))
    differs = _without_schema(before) != _without_schema(after)
    module.exit_json(changed=differs, record=after, diff={"before": _text(before), "after": _text(after)})


def _before(state_dir: str, name: str, state: str) -> dict[str, Any] | None:
    try:
        return _records.read(state_dir, name)
    except _records.RecordError:
        if state != "present":
            raise
        return None


def _agrees(entry: Any, pattern: dict[str, Any]) -> bool:
    return isinstance(entry, dict) and all(entry.get(key) == value for key, value in pattern.items())


def _lasting(content: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in content.items() if key not in VOLATILE}


def _without_schema(content: dict[str, Any] | None) -> dict[str, Any] | None:
    return None if content is None else {key: value for key, value in content.items() if key != "schema"}


def _text(content: dict[str, Any] | None) -> str:
    return "" if content is None else json.dumps(content, indent=1, sort_keys=True) + "\n"


if __name__ == "__main__":
    main()
