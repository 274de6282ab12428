# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import multiprocessing
import os
import stat

import pytest
from ansible_collections.gpufleet.inference.plugins.module_utils import _records


def test_absent_records_read_as_none(tmp_path):
    assert _records.read_all(str(tmp_path / "nowhere")) == dict.fromkeys(_records.NAMES)


def test_update_writes_a_private_file_with_its_schema(tmp_path):
    state = tmp_path / "state"
    assert _records.update(str(state), "fallback", lambda current: {"profile": "safe"}) == {"profile": "safe", "schema": 1}
    assert stat.S_IMODE(os.stat(state).st_mode) == 0o700
    assert stat.S_IMODE(os.stat(state / "fallback.json").st_mode) == 0o600
    assert _records.read_all(str(state))["fallback"] == {"profile": "safe", "schema": 1}
    assert sorted(os.listdir(state)) == [".lock", "fallback.json"]


def test_update_to_none_removes_the_record(tmp_path):
    _records.update(str(tmp_path), "marks", lambda current: {"marks": []})
    assert _records.update(str(tmp_path), "marks", lambda current: None) is None
    assert not (tmp_path / "marks.json").exists()


def test_an_equal_record_is_not_written_again(tmp_path):
    _records.update(str(tmp_path), "marks", lambda current: {"marks": []})
    before = os.stat(tmp_path / "marks.json").st_ino
    _records.update(str(tmp_path), "marks", lambda current: {"marks": []})
    assert os.stat(tmp_path / "marks.json").st_ino == before


@pytest.mark.parametrize("text", ["{", "[]", "\udcff", ""])
def test_a_corrupt_record_is_reported_and_not_overwritten(tmp_path, text):
    path = tmp_path / "attempts.json"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    assert str(path) in _records.read_all(str(tmp_path))["attempts"]["error"]
    with pytest.raises(_records.RecordError, match=r"attempts.json"):
        _records.update(str(tmp_path), "attempts", lambda current: {"attempts": []})
    assert path.read_bytes() == text.encode("utf-8", "surrogateescape")
    assert _records.update(str(tmp_path), "attempts", lambda current: {"was": current}, discard_unreadable=True) == {
        "was": None,
        "schema": 1,
    }


def test_a_change_that_fails_leaves_the_record(tmp_path):
    _records.update(str(tmp_path), "marks", lambda current: {"marks": [1]})
    with pytest.raises(TypeError):
        _records.update(str(tmp_path), "marks", lambda current: {"marks": object()})
    assert json.loads((tmp_path / "marks.json").read_text())["marks"] == [1]
    assert sorted(os.listdir(tmp_path)) == [".lock", "marks.json"]


def _append(state_dir, count):
    for number in range(count):
        _records.update(state_dir, "attempts", lambda current, n=number: {"attempts": (current or {"attempts": []})["attempts"] + [n]})


def test_nobody_interleaves(tmp_path):
    workers = [multiprocessing.get_context("fork").Process(target=_append, args=(str(tmp_path), 20)) for _each in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(_records.read(str(tmp_path), "attempts")["attempts"]) == 80


def test_a_lock_that_stays_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(_records, "LOCK_WAIT_S", 0.1)

    def nested(current):
        _records.update(str(tmp_path), "marks", lambda inner: {})
        return {}

    with pytest.raises(_records.RecordError, match="still locked"):
        _records.update(str(tmp_path), "marks", nested)


def test_lease_is_exclusive_renewable_and_expires(tmp_path):
    state = str(tmp_path)
    lease = _records.take_lease(state, "a", "deploy", 60, now=1000.0)
    assert (lease["since"], lease["expires"]) == (1000.0, 1060.0)
    with pytest.raises(_records.LeaseHeldError, match="held by a for deploy"):
        _records.take_lease(state, "b", "remediation", 60, now=1059.0)
    assert _records.take_lease(state, "a", "deploy", 60, now=1030.0)["since"] == 1000.0
    assert _records.take_lease(state, "b", "remediation", 60, now=1091.0)["owner"] == "b"


def test_only_the_holder_releases(tmp_path):
    state = str(tmp_path)
    assert _records.release_lease(state, "a") is False
    _records.take_lease(state, "a", "deploy", 60)
    assert _records.release_lease(state, "b") is False
    assert _records.read(state, "lease")["owner"] == "a"
    assert _records.release_lease(state, "a") is True
    assert _records.read(state, "lease") is None


@pytest.mark.parametrize(
    ("lease", "valid"), [(None, False), ({"expires": 11}, True), ({"expires": 10}, False), ({}, True), ({"expires": "x"}, True)]
)
def test_a_lease_without_a_readable_expiry_binds(lease, valid):
    assert _records.lease_is_valid(lease, 10) is valid


@pytest.mark.parametrize("name", _records.NAMES)
@pytest.mark.parametrize("kind", ["pipe", "directory", "device", "huge", "deep"])
def test_what_is_no_small_regular_file_is_reported_at_once(tmp_path, name, kind):
    path = tmp_path / f"{name}.json"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "huge":
        path.touch()
        os.truncate(path, _records.MAX_BYTES + 1)
    else:
        path.write_text("[" * 200_000)
    assert str(path) in _records.read_all(str(tmp_path))[name]["error"]


@pytest.mark.parametrize("name", _records.LISTS)
@pytest.mark.parametrize("content", ["{}", "5", '"x"', "null"])
def test_a_list_of_another_type_is_no_empty_list(tmp_path, name, content):
    (tmp_path / f"{name}.json").write_text(f'{{"{name}": {content}}}')
    assert "no list" in _records.read_all(str(tmp_path))[name]["error"]


def test_a_lease_until_nan_binds():
    assert _records.lease_is_valid({"expires": float("nan")}, 10)
