# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Xid lines of the kernel log: which codes, of which class, on which GPU, and what the driver itself asks for. Data in data/xid.yml."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from typing import Any

import yaml
from ansible_collections.gpufleet.inference.plugins.plugin_utils import policy

_XID = re.compile(
    r"Xid \((?:PCI:)?(?P<bdf>[0-9a-fA-F]{4}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.\d)?)(?: GPU-I:\d+)?(?: GPU-CI:\d+)?\): "
    r"(?P<xid>\d{1,4})\b(?P<rest>.{0,400})"
)
_CAUSED = re.compile(r"caused by previous Xid (\d{1,4})")
_RECOVERY = re.compile(r"GPU recovery action changed from 0x\w+ \(([^)]{1,60})\) to 0x\w+ \(([^)]{1,60})\)")
# From harmless to harsh; an unknown word counts as reset.
RECOVERY = ("none", "drain", "reset", "reboot")


@functools.lru_cache(maxsize=1)
def table() -> dict[int, str]:
    """Class of each known code."""
    loaded = yaml.safe_load((policy.DATA / "xid.yml").read_text(encoding="utf-8"))
    return {code: name for name, codes in loaded["classes"].items() for code in codes}


def recovery(words: str | None) -> str | None:
    """The driver's recovery action as none, drain, reset or reboot. Words decide: the codes differ between drivers."""
    if not words:
        return None
    lower = words.lower()
    if lower in ("none", "n/a", "[n/a]", "0", "not supported", "[not supported]"):
        return "none"
    if "reboot" in lower:
        return "reboot"
    return "drain" if "drain" in lower and "reset" not in lower else "reset"


def read(lines: Iterable[str]) -> dict[str, Any]:
    """Facts of the Xid lines: {codes, classes: {class: [codes]}, gpus: {code: number of GPUs}, recovery, fatal, unrecognized, quotes}.

    A code named as "caused by previous Xid" counts as seen. Injected NVLink test events (i1) do not.
    """
    codes: dict[int, set[str]] = {}
    quotes: dict[int, str] = {}
    asked: str | None = None
    fatal = False
    unrecognized: set[str] = set()
    for line in lines:
        match = _XID.search(line)
        if not match:
            continue
        code, bdf, rest = int(match["xid"]), match["bdf"].lower(), match["rest"]
        if 144 <= code <= 150 and re.search(r"\bi1\b", rest):
            continue
        codes.setdefault(code, set()).add(bdf)
        quotes.setdefault(code, line[:200])
        caused = _CAUSED.search(rest)
        if caused:
            codes.setdefault(int(caused[1]), set()).add(bdf)
            quotes.setdefault(int(caused[1]), line[:200])
        changed = _RECOVERY.search(rest)
        if changed:
            asked = _harsher(asked, recovery(changed[2]))
        fatal = fatal or bool(144 <= code <= 150 and re.search(r"\bFatal\b", rest))
        if code == 31 and "UNRECOGNIZED_CLIENT" in rest:
            unrecognized.add(bdf)
    known = table()
    classes: dict[str, list[int]] = {}
    for code in sorted(codes):
        classes.setdefault(known.get(code, "unknown"), []).append(code)
    return {
        "codes": sorted(codes),
        "classes": classes,
        "gpus": {str(code): len(bdfs) for code, bdfs in codes.items()},
        "recovery": asked,
        "fatal": fatal,
        "unrecognized": len(unrecognized),
        "quotes": {str(code): quote for code, quote in quotes.items()},
    }


def _harsher(one: str | None, other: str | None) -> str | None:
    known = [word for word in (one, other) if word in RECOVERY]
    return max(known, key=RECOVERY.index) if known else None
