# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The policy of the judge: what silence is normal and what movement counts. Data in data/policy.yml."""

from __future__ import annotations

import copy
import functools
import pathlib
from typing import Any

import yaml

DATA = pathlib.Path(__file__).parent / "data"


class PolicyError(ValueError):
    """A policy that can not be used; the text names the key."""


@functools.lru_cache(maxsize=1)
def _defaults() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((DATA / "policy.yml").read_text(encoding="utf-8"))
    return loaded


def load(overrides: Any = None) -> dict[str, Any]:
    """The default policy with `overrides` (nested mapping of numbers) merged in.

    Raises PolicyError that names an unknown key or a value that is not a number >= 0.
    """
    policy = copy.deepcopy(_defaults())
    if overrides is None:
        return policy
    if not isinstance(overrides, dict):
        raise PolicyError(f"policy: expected a mapping, found {type(overrides).__name__}")
    _merge(policy, overrides, "")
    return policy


def _merge(into: dict[str, Any], changes: dict[Any, Any], where: str) -> None:
    for key, value in changes.items():
        name = f"{where}{key}"
        if key not in into:
            raise PolicyError(f"policy: unknown key {name} (known: {', '.join(sorted(into))})")
        if isinstance(into[key], dict):
            if not isinstance(value, dict):
                raise PolicyError(f"policy: {name}: expected a mapping, found {type(value).__name__}")
            _merge(into[key], value, f"{name}.")
        else:
            into[key] = _amount(name, value)


def _amount(name: str, value: Any) -> float:
    try:
        amount = float(value)
    except (TypeError, ValueError):
        raise PolicyError(f"policy: {name}: expected a number, found {value!r}") from None
    if isinstance(value, bool) or not 0 <= amount < float("inf"):
        raise PolicyError(f"policy: {name}: expected a number >= 0, found {value!r}")
    return amount
