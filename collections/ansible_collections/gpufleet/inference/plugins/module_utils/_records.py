# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The records that live on a host: one JSON file each in the state directory.

They survive a reboot and a controller that forgets (an AWX job). Every time in a record is in seconds
since the epoch. PRIVATE to the collection.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import stat
import tempfile
import time
from collections.abc import Iterator
from typing import Any, Callable

NAMES = ("manifest", "adoption", "last_known_good", "fallback", "attempts", "marks", "visits", "lease")
LISTS = ("attempts", "marks", "visits")
SCHEMA = 1
MAX_BYTES = 8 << 20
LOCK_WAIT_S = 10.0

Record = dict[str, Any]


class RecordError(Exception):
    """A record can not be read, or the state directory can not be locked or written; the text names the path."""


class LeaseHeldError(Exception):
    """The lease belongs to somebody else and has not expired; C(lease) is the record of the holder."""

    def __init__(self, lease: Record) -> None:
        self.lease = lease
        expires = lease.get("expires")
        until = ""
        if isinstance(expires, (int, float)) and 0 < expires < 4e9:
            until = time.strftime(" until %Y-%m-%d %H:%M:%SZ", time.gmtime(expires))
        super().__init__(
            f"the lease of this host is held by {lease.get('owner')} for {lease.get('purpose')}{until}; if that run is gone, release it:"
            f" gpufleet.inference.host_lease with owner='{lease.get('owner')}' state=absent"
        )


def path_of(state_dir: str, name: str) -> str:
    """The file of record O(name); ValueError for a name that is no record."""
    if name not in NAMES:
        raise ValueError(f"no such record: {name} (known: {', '.join(NAMES)})")
    return os.path.join(state_dir, name + ".json")


def read(state_dir: str, name: str) -> Record | None:
    """One record, or None when the host has none. RecordError when it is there but unreadable."""
    path = path_of(state_dir, name)
    try:
        # Opening a pipe that took the place of the file must not wait for a writer.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), encoding="utf-8") as stream:
            info = os.fstat(stream.fileno())
            if not stat.S_ISREG(info.st_mode) or info.st_size > MAX_BYTES:
                raise ValueError(f"no regular file of at most {MAX_BYTES} bytes")
            content = json.load(stream)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise RecordError(f"{path}: {error}") from error
    if not isinstance(content, dict):
        raise RecordError(f"{path}: not a JSON object")
    if name in LISTS and not isinstance(content.get(name, []), list):
        raise RecordError(f"{path}: {name} is no list")
    return content


def read_all(state_dir: str) -> dict[str, Record | None]:
    """Every record by name: its content, None when absent, C({"error": text}) when unreadable. Never raises."""
    found: dict[str, Record | None] = {}
    for name in NAMES:
        try:
            found[name] = read(state_dir, name)
        except RecordError as error:
            found[name] = {"error": str(error)}
    return found


def update(
    state_dir: str,
    name: str,
    change: Callable[[Record | None], Record | None],
    discard_unreadable: bool = False,
) -> Record | None:
    """Replace a record by C(change(current)) in one step that nobody else interleaves, and return the new content.

    :param change: gets the current content (None when absent); returning None removes the record.
    :param discard_unreadable: hand None to C(change) for a corrupt record instead of raising, for records that
        lose nothing by it (a history of caps would).
    :raises RecordError: unreadable record, or a state directory that can not be locked or written.
    """
    path = path_of(state_dir, name)
    with _locked(state_dir):
        try:
            current = read(state_dir, name)
        except RecordError:
            if not discard_unreadable:
                raise
            current = None
        content = change(None if current is None else dict(current))
        try:
            if content is None:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)
            else:
                content = dict(content, schema=SCHEMA)
                if content != current:
                    _write(path, content)
        except OSError as error:
            raise RecordError(f"{path}: {error}") from error
    return content


def take_lease(state_dir: str, owner: str, purpose: str, ttl: float, now: float | None = None) -> Record:
    """Take the lease of the host, or renew it when O(owner) holds it already. O(ttl) in seconds.

    :raises LeaseHeldError: somebody else holds it and it has not expired.
    """
    moment = time.time() if now is None else now

    def change(current: Record | None) -> Record:
        mine = current is not None and current.get("owner") == owner
        if current is not None and not mine and lease_is_valid(current, moment):
            raise LeaseHeldError(current)
        since = current["since"] if mine and current is not None and "since" in current else moment
        return {"owner": owner, "purpose": purpose, "since": since, "expires": moment + ttl}

    return update(state_dir, "lease", change) or {}


def release_lease(state_dir: str, owner: str) -> bool:
    """Give the lease back if O(owner) holds it; False when there was nothing of ours to give back."""
    released = False

    def change(current: Record | None) -> Record | None:
        nonlocal released
        released = current is not None and current.get("owner") == owner
        return None if released else current

    if read(state_dir, "lease") is not None:
        update(state_dir, "lease", change)
    return released


def lease_is_valid(lease: Record | None, now: float) -> bool:
    """Whether a lease record still binds. A lease without a readable expiry binds: only a person can tell."""
    if lease is None:
        return False
    try:
        return not float(lease.get("expires", "never")) <= now  # a NaN binds too
    except (TypeError, ValueError):
        return True


@contextlib.contextmanager
def _locked(state_dir: str) -> Iterator[None]:
    try:
        os.makedirs(state_dir, mode=0o700, exist_ok=True)
        handle = os.open(os.path.join(state_dir, ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise RecordError(f"{state_dir}: {error}") from error
    try:
        deadline = time.monotonic() + LOCK_WAIT_S
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise RecordError(f"{state_dir}/.lock: still locked after {LOCK_WAIT_S:.0f} s") from None
                time.sleep(0.05)
        yield
    finally:
        os.close(handle)


def _write(path: str, content: Record) -> None:
    directory = os.path.dirname(path)
    handle, temporary = tempfile.mkstemp(prefix="." + os.path.basename(path) + ".", dir=directory)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            json.dump(content, stream, indent=1, sort_keys=True)
            stream.write("\n")
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
    directory_handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(directory_handle)
    finally:
        os.close(directory_handle)
