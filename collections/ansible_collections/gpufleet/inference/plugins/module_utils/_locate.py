# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. Find our server's processes from what the host knows, for modules that need no whole snapshot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ansible_collections.gpufleet.inference.plugins.module_utils import _bounded, _identity, _records, _service, _target


@dataclass
class Located:
    """Our server at one moment.

    :ivar options: the options with their gaps filled from the manifest.
    :ivar service: what the service manager says.
    :ivar found: main process and members as :func:`_identity.find` returns them.
    """

    options: dict[str, Any]
    service: dict[str, Any]
    found: dict[str, Any]
    identity: _identity.Server

    def again(self) -> dict[str, Any]:
        """Look for the members once more, without the manager's process id: it may be somebody else's by now."""
        return _identity.find(replace(self.identity, main_pid=None))


def locate(options: Mapping[str, Any]) -> Located:
    """Read the manifest, ask the service manager, scan the process table."""
    state_dir = str(options["state_dir"])
    records = _bounded.call(lambda emit: emit(_records.read_all(state_dir)), 5.0).values
    resolved = _target.resolve(options, _target.sound(records.get("manifest")))
    service = _service.collect(resolved["service_manager"], resolved["service_name"], resolved["supervisor_conf"], 5.0, state_dir)
    resolved, service = _target.with_adopted(resolved, service, _target.adopted(records.get("adoption"), service))
    identity = _identity.Server(**_target.server(resolved, service))
    return Located(resolved, service, _identity.find(identity), identity)
