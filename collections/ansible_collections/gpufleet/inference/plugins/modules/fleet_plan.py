# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name."""

from __future__ import annotations

DOCUMENTATION = r"""
module: fleet_plan
author: gpufleet contributors (@gpufleet)
version_added: 1.0.0
short_description: Plan what remediation may do with each host of a fleet
description:
  - Looks at what M(gpufleet.inference.gather_diag) found on every host and decides once for the whole fleet who may be touched.
  - Each rail that refuses something is named in the reasons. Nothing is changed on any host.
  - Only servers that are C(stuck) or C(crashed) are ever acted on, and only when processes, kernel log and GPUs were readable.
  - When more than half of at least three hosts are newly bad at once, nobody is acted on and C(plan.fleet.page) is true.
  - Runs on the controller.
extends_documentation_fragment:
  - gpufleet.inference.attributes
attributes:
  check_mode:
    support: full
    details: Plans as with O(mode=observe).
  diff_mode:
    support: none
  idempotent:
    support: full
options:
  results_var:
    description:
      - Variable of each host with the registered result of M(gpufleet.inference.gather_diag), run with its records returned.
      - A host without it counts as unreachable.
    type: str
    required: true
  hosts:
    description: Hosts to plan for.
    type: list
    elements: str
    required: true
  group:
    description:
      - Inventory group that is the whole fleet. When O(hosts) leaves out members of it, destructive steps are refused unless
        O(fleet_size) is set.
    type: str
    default: sglang
  mode:
    description: With V(observe) nothing is acted on; what would be done is said.
    type: str
    choices: [observe, heal]
    default: observe
  fleet_size:
    description: How many hosts the fleet has. Unset, the number of O(hosts).
    type: int
  owner:
    description: Name of this run. A lease of that owner does not make a host wait.
    type: str
  max_attempts:
    description: Attempts per host in O(attempt_window); after that the host is quarantined.
    type: int
    default: 3
  max_restarts:
    description: Restarts with the same configuration in one incident; after that the next profile is tried.
    type: int
    default: 2
  attempt_window:
    description: Window for O(max_attempts) in seconds.
    type: float
    default: 86400
  cooldown:
    description: Seconds between two attempts on a host.
    type: float
    default: 600
  confirm_visits:
    description: Visits without progress that must agree before acting when nothing but missing progress speaks for C(stuck).
    type: int
    default: 2
  confirm_seconds:
    description: Seconds that those visits must span.
    type: float
    default: 120
  breaker_percent:
    description: Share of the fleet that may be acted on in O(breaker_window), in percent, but always one host.
    type: float
    default: 20
  breaker_max:
    description: Most hosts that may be acted on in O(breaker_window).
    type: int
    default: 8
  breaker_window:
    description: Window for the breaker in seconds. What was done is read from the records of the hosts.
    type: float
    default: 3600
  fallback_ttl:
    description: Seconds that a fallback to another profile stays valid.
    type: float
    default: 2592000
  quarantine_ttl:
    description: Seconds that a quarantine stays valid.
    type: float
    default: 604800
"""

EXAMPLES = r"""
- name: Plan for the whole fleet
  gpufleet.inference.fleet_plan:
    results_var: diag
    hosts: "{{ ansible_play_hosts_all }}"
    mode: heal
  run_once: true
  register: planned

- name: Show what would be done
  ansible.builtin.debug:
    var: planned.plan.hosts[inventory_hostname]
"""

RETURN = r"""
plan:
  description: The plan for hosts and fleet.
  returned: success
  type: dict
  contains:
    hosts:
      description:
        - Per host C(decision) (V(none), V(wait), V(act), V(would_act), V(refused), V(quarantine), V(escalate) or V(unreachable)),
          C(action), C(state), C(cause), C(confidence), C(profile_from), C(profile_to), C(differs) (what the new profile changes in
          effect), C(reasons), C(incident) (the same until a cure) and C(expires) (of the fallback or quarantine, seconds since
          the epoch).
      type: dict
      returned: success
    fleet:
      description:
        - C(size), C(bad) and C(newly_bad) (host names), C(budget) (hosts that may be acted on in the window), C(breaker)
          (V(closed) or V(open)), C(page) (whether a person is needed) and C(reasons).
      type: dict
      returned: success
"""
