# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The verdict: situations, examples of the catalogue, and the laws as properties."""

from __future__ import annotations

import copy
import json
import pathlib
import time
from typing import Any

import jsonschema
import pytest
from ansible_collections.gpufleet.inference.plugins.plugin_utils import bundle, facts, policy, signatures
from ansible_collections.gpufleet.inference.plugins.plugin_utils.diagnose import DESTRUCTIVE, diagnose
from ansible_collections.gpufleet.inference.tests.unit.plugins.plugin_utils import snapshots
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

CATALOG = signatures.load()
POLICY = policy.load()
SURE = ("low", "medium", "high")
SOURCES = ("service", "processes", "port", "http", "log", "kernel", "gpus", "syscalls", "system", "records", "target", "host")


def verdict(snapshot: Any) -> dict[str, Any]:
    return diagnose(snapshot, CATALOG, POLICY)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "incident",
            {
                "state": "stuck",
                "phase": "weights_loading",
                "cause": "sm120_unsupported_backend",
                "confidence": "medium",
                "action": "reconfigure",
            },
        ),
        ("incident_slow", {"state": "starting", "phase": "weights_loading", "cause": "slow_weights", "action": "wait"}),
        (
            "incident_triton",
            {"state": "stuck", "phase": "weights_loading", "cause": "post_nccl_hang_unknown", "action": "restart", "proof": "no_progress"},
        ),
        ("compiling", {"state": "starting", "action": "wait"}),
        ("oom", {"state": "crashed", "cause": "gpu_oom", "action": "reconfigure"}),
        ("serving", {"state": "serving", "phase": "serving", "cause": "healthy", "confidence": "high", "action": "none"}),
        ("green_freeze", {"state": "stuck", "phase": "serving", "action": "restart", "proof": "no_progress"}),
        ("busy", {"state": "serving", "action": "none"}),
        ("fresh", {"state": "starting", "action": "wait"}),
        ("stopped", {"state": "stopped", "action": "none"}),
    ],
)
def test_situations(name: str, expected: dict[str, str]) -> None:
    found = verdict(snapshots.build(name))
    assert {key: found[key] for key in expected} == expected, found
    assert found["action"] not in found["forbid"]
    assert len(json.dumps(found)) <= 6 * 1024
    assert found["summary"]
    assert all(reason["quote"] for reason in found["reasons"])


def test_incident_says_what_is_missing() -> None:
    found = verdict(snapshots.build("incident"))
    assert {"stacks", "nccl"} <= set(found["missing"])
    without = snapshots.build("incident")
    without["syscalls"] = {"status": "unavailable", "reason": "ptrace not permitted", "seconds": 0.1}
    assert verdict(without)["confidence"] == "low"


@pytest.mark.parametrize("name", ["incident", "incident_triton"])
@pytest.mark.parametrize(
    "mutation",
    [
        lambda s: s["processes"]["totals"].update(read_bytes_per_s=9e6),
        lambda s: s["processes"]["totals"].update(majflt_per_s=900),
        lambda s: s["gpus"]["devices"][3]["delta"].update(memory_used_mib=512),
        lambda s: s["processes"].update(compilers=[{"pid": 9, "name": "ptxas", "cpu_s": 1.0, "delta_cpu_s": 1.0}]),
        lambda s: s["log"].update(silent_s=1.0),
    ],
)
def test_a_counter_that_moves_is_never_a_hang(name: str, mutation: Any) -> None:
    snapshot = snapshots.build(name)
    mutation(snapshot)
    found = verdict(snapshot)
    assert (found["state"], found["action"]) == ("starting", "wait")


def test_two_layers_are_needed() -> None:
    snapshot = snapshots.build("incident_triton")
    for source in ("gpus", "syscalls"):
        snapshot[source] = {"status": "unavailable", "reason": "no", "seconds": 0}
    assert verdict(snapshot)["state"] == "unknown"


def test_harder_causes_win() -> None:
    for name in snapshots.ALL:
        snapshot = snapshots.build(name)
        line = "NVRM: Xid (PCI:0000:41:00): 79, pid=77, name=python3, GPU has fallen off the bus."
        snapshot["kernel"].update(hits={"xid": {"count": 1, "first": line, "last": line}}, lines=[line])
        found = verdict(snapshot)
        assert (found["state"], found["cause"], found["action"]) == ("gpu_fault", "fallen_off", "quarantine"), name


@pytest.mark.parametrize("name", sorted(snapshots.ALL))
def test_xid_45_alone_changes_nothing(name: str) -> None:
    plain = verdict(snapshots.build(name))
    snapshot = snapshots.build(name)
    line = "NVRM: Xid (PCI:0000:41:00): 45, pid=77, name=python3, Ch 00000008"
    snapshot["kernel"].update(hits={"xid": {"count": 8, "first": line, "last": line}}, lines=[line])
    found = verdict(snapshot)
    assert (found["state"], found["cause"], found["action"]) == (plain["state"], plain["cause"], plain["action"])


def test_still_counts_visits() -> None:
    snapshot = snapshots.build("incident")
    visit = {
        "at": snapshots.NOW - 300,
        "first_at": snapshots.NOW - 600,
        "count": 2,
        "main_pid": 1000,
        "rchar": 90_000_000,
        "read_bytes": 90_000_000,
        "majflt": 120,
        "gpu_memory_mib": 616000,
        "log_size": snapshot["log"]["size"],
        "tokens": None,
        "generate": "refused",
        "compilers": [],
    }
    snapshot["records"]["visits"] = {"schema": 1, "visits": [visit]}
    assert verdict(snapshot)["still"] == {"visits": 3, "seconds": 600.0}
    visit["rchar"] = 1000
    assert verdict(snapshot)["still"] == {"visits": 1, "seconds": 0.0}


def test_own_visit_of_now_does_not_count() -> None:
    snapshot = snapshots.build("incident")
    snapshot["records"]["visits"] = {"visits": [{"at": snapshots.NOW, "first_at": snapshots.NOW, "count": 1, "main_pid": 1000}]}
    assert verdict(snapshot)["still"]["visits"] == 1


def example(case: dict[str, Any]) -> Any:
    if "snapshot" in case:
        return case["snapshot"]
    names = {source: name for name, source in bundle.TEXTS.items()} | {"log": "server.log"}
    texts = {names[source]: text for source, text in case.items() if source in names}
    bundle.check_observed(case.get("observed", {}), bundle._schema(), "example")
    return bundle.assemble(texts, case.get("observed"), CATALOG)


@pytest.mark.parametrize("signature", CATALOG.signatures, ids=lambda signature: signature.id)
def test_examples(signature: signatures.Signature) -> None:
    assert signature.examples["positive"]
    assert signature.examples["negative"]
    for case in signature.examples["positive"]:
        found = verdict(example(case))
        assert found["cause"] == signature.cause, (case, found)
        assert found["state"] in (signature.state, "crashed"), (case, found)
        assert found["action"] == signature.action, (case, found)
    for case in signature.examples["negative"]:
        assert verdict(example(case))["signature"] != signature.id, case


def test_speed() -> None:
    snapshot = snapshots.build("incident")
    verdict(snapshot)
    best = min(_timed(snapshot) for _round in range(5))
    assert best <= 0.020, f"{best * 1000:.1f} ms"


def _timed(snapshot: Any) -> float:
    started = time.perf_counter()
    verdict(snapshot)
    return time.perf_counter() - started


@pytest.mark.parametrize("name", sorted(snapshots.ALL))
def test_snapshots_fit_the_schema(name: str) -> None:
    schema = json.loads((pathlib.Path(policy.__file__).parent / "data" / "snapshot.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.Draft202012Validator(schema).validate(snapshots.build(name))


JUNK: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(["ok", "timeout", "running", "12.0", -1]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8) | st.sampled_from(SOURCES), inner, max_size=4),
    max_leaves=20,
)
CALM = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@CALM
@given(JUNK)
def test_total_on_garbage(junk: Any) -> None:
    found = verdict(junk)
    assert found["state"] in signatures.STATES
    assert found["action"] in signatures.ACTIONS


@CALM
@given(st.sampled_from(sorted(snapshots.ALL)), st.data())
def test_total_on_damage(name: str, data: st.DataObject) -> None:
    snapshot = snapshots.build(name)
    for _round in range(4):
        node: Any = snapshot
        for _step in range(data.draw(st.integers(1, 4))):
            if not isinstance(node, (dict, list)) or not node:
                break
            key = data.draw(st.sampled_from(sorted(node) if isinstance(node, dict) else list(range(len(node)))))
            if data.draw(st.booleans()):
                node[key] = data.draw(JUNK)
                break
            node = node[key]
    found = verdict(snapshot)
    assert found["state"] in signatures.STATES
    assert found["action"] not in found["forbid"]


@CALM
@given(st.sampled_from(sorted(snapshots.ALL)), st.sets(st.sampled_from(SOURCES)))
def test_fewer_sources_never_raise_confidence(name: str, removed: set[str]) -> None:
    whole = verdict(snapshots.build(name))
    snapshot = snapshots.build(name)
    for source in removed:
        snapshot[source] = {"status": "unavailable", "reason": "removed", "seconds": 0}
    found = verdict(snapshot)
    if (found["state"], found["cause"]) == (whole["state"], whole["cause"]):
        assert SURE.index(found["confidence"]) <= SURE.index(whole["confidence"])
    if removed & {"processes", "kernel", "gpus"}:
        assert found["confidence"] != "high"
        assert removed & {"processes", "kernel", "gpus"} <= set(found["missing"])
    if found["state"] in ("unknown", "starting", "serving"):
        assert found["action"] not in DESTRUCTIVE
        assert set(DESTRUCTIVE) <= set(found["forbid"])
    if whole["state"] in ("starting", "serving"):
        assert found["action"] not in DESTRUCTIVE


def test_no_evidence_is_unknown() -> None:
    for nothing in ({}, None, [], "x", {"schema": 1, "collected_at": 1.0}):
        found = verdict(nothing)
        assert (found["state"], found["action"]) == ("unknown", "wait")


@pytest.mark.parametrize("name", sorted(snapshots.ALL))
def test_names_and_times_change_nothing(name: str) -> None:
    plain = verdict(snapshots.build(name))
    text = (
        json.dumps(snapshots.build(name))
        .replace("gpu01", "other")
        .replace("/models/k", "/srv/m")
        .replace("/var/log", "/data")
        .replace("2026-05", "2031-11")
    )
    moved = json.loads(text)
    shift = 7_000_000.0
    moved["collected_at"] += shift
    moved["service"]["since"] += shift
    for process in [moved["processes"]["main"], *moved["processes"]["members"]]:
        if process:
            process["start_time"] += shift
    found = verdict(moved)
    keys = ("state", "phase", "cause", "confidence", "action", "forbid", "missing", "proof", "signature")
    assert {key: found[key] for key in keys} == {key: plain[key] for key in keys}


def test_input_is_not_changed() -> None:
    snapshot = snapshots.build("incident")
    before = copy.deepcopy(snapshot)
    verdict(snapshot)
    assert snapshot == before


def test_removing_the_quoted_evidence_changes_the_verdict() -> None:
    snapshot = snapshots.build("oom")
    before = verdict(snapshot)
    assert any("out of memory" in reason["quote"] for reason in before["reasons"])
    snapshot["log"]["hits"] = {name: hit for name, hit in snapshot["log"]["hits"].items() if "out of memory" not in hit["last"]}
    assert verdict(snapshot)["cause"] != before["cause"]


def test_view_names_effective_flags() -> None:
    view = facts.view(snapshots.build("incident"))
    assert view["flags"]["attention_backend"] == "flashinfer"
    assert view["gpu"]["class"] == "sm120_pcie"


def test_host_on_which_nothing_was_ever_started_is_stopped_not_crashed() -> None:
    snapshot = snapshots.build("serving")
    absent = {"status": "absent", "reason": "nothing here"}
    snapshot["service"] = {**absent, "state": None, "desired": None}
    snapshot["processes"] = {**absent, "main": None, "members": [], "schedulers": 0, "schedulers_alive": 0}
    snapshot["log"] = dict(absent)
    snapshot["port"] = {"status": "ok", "listening": False, "ours": None}
    snapshot["http"] = {"status": "ok", "generate": {"result": "refused"}}
    snapshot["records"] = {}
    told = verdict(snapshot)
    assert (told["state"], told["action"], told["phase"]) == ("stopped", "none", "not_started")
    snapshot["records"] = {"visits": {"visits": [{"at": snapshot["collected_at"] - 600, "main_pid": 4711}]}}
    assert verdict(snapshot)["state"] == "crashed"


def test_batches_logged_before_our_request_do_not_excuse_a_frozen_server() -> None:
    snapshot = snapshots.build("green_freeze")
    asked = snapshot["collected_at"]
    snapshot["http"]["generate"]["asked_at"] = asked
    batch = {"count": 1, "first": "Decode batch, #running-req: 1", "last": "Decode batch, #running-req: 1", "first_time": asked - 2}
    snapshot["log"]["hits"]["decode_batch"] = {**batch, "last_time": asked - 2}
    assert verdict(snapshot)["state"] == "stuck"
    snapshot["log"]["hits"]["decode_batch"]["last_time"] = asked + 5
    assert verdict(snapshot)["state"] == "serving"


def test_the_fallback_stands_beside_the_state_with_a_time_for_people() -> None:
    snapshot = snapshots.build("serving")
    snapshot["records"] = {"fallback": {"profile": "safe", "primary": "flashinfer", "expires": 1_800_000_000}}
    assert verdict(snapshot)["fallback"] == {"profile": "safe", "primary": "flashinfer", "expires": "2027-01-15T08:00:00Z"}
    snapshot["records"]["fallback"]["expires"] = 1e30
    assert verdict(snapshot)["fallback"]["expires"] is None


def test_tokens_of_our_own_unanswered_request_are_no_life() -> None:
    """Seen on the real engine: with a stopped detokenizer the scheduler computes what nobody gets."""
    snapshot = snapshots.build("green_freeze")
    now = snapshot["collected_at"]
    snapshot["http"]["metrics"] = {
        "first": {"realtime_tokens_total": 1000},
        "second": {"realtime_tokens_total": 1030, "num_running_reqs": 0},
        "tokens_delta": 30,
    }
    snapshot["http"]["generate"]["asked_at"] = now
    own = {"count": 1, "first": "Prefill batch, #new-seq: 1", "last": "Prefill batch, #new-seq: 1", "last_time": now + 1}
    snapshot["log"]["hits"]["prefill_batch"] = {**own, "first_time": now + 1}
    main = snapshot["processes"]["main"]
    visit = {"at": now - 200, "first_at": now - 200, "count": 1, "main_pid": main["pid"], "main_start": main["start_time"]}
    snapshot["records"] = {"visits": {"visits": [{**visit, "tokens": 1000, "generate": "timeout"}]}}
    told = verdict(snapshot)
    assert (told["state"], told["proof"], told["still"]) == ("stuck", "no_progress", {"visits": 2, "seconds": 200.0})
    snapshot["http"]["metrics"]["tokens_delta"] = 4000
    assert verdict(snapshot)["state"] == "serving"


def test_an_engine_that_says_it_goes_down_is_crashed_not_stuck() -> None:
    snapshot = snapshots.build("green_freeze")
    at = snapshot["collected_at"]
    snapshot["log"]["hits"].update(
        {
            name: {"count": 1, "first": line, "last": line, "first_time": at, "last_time": at}
            for name, line in (
                ("child_crashed", "Subprocess scheduler_0 (pid=7) crashed with exit code -9. Triggering SIGQUIT for cleanup..."),
                ("sigquit", "SIGQUIT received. signum=None, frame=None. It usually means one child failed."),
            )
        }
    )
    assert verdict(snapshot)["state"] == "crashed"
