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


def _hit(line: str, at: float) -> dict[str, Any]:
    return {"count": 1, "first": line, "last": line, "first_time": at, "last_time": at, "ranks": {}}


def test_a_few_tokens_of_others_are_life_on_a_slow_engine() -> None:
    """Seen on a CPU with eight requests: 47 tokens in 10 s, 25 of them decoded; ours was not answered in time, /health was."""
    snapshot = snapshots.build("green_freeze")
    counters = {"realtime_tokens_total": 266.0, "num_running_reqs": 8.0, "num_queue_reqs": 0.0, "http_requests_active": 9.0}
    snapshot["http"]["generate"].update(seconds=10.0, asked_at=snapshot["collected_at"])
    later = {**counters, "realtime_tokens_total": 313.0}
    snapshot["http"]["metrics"] = {"first": counters, "second": later, "tokens_delta": 47, "decode_delta": 25}
    snapshot["http"]["health"] = {"result": "ok", "code": 200, "seconds": 4.0}
    assert verdict(snapshot)["state"] == "serving"
    # Our own four tokens, computed for nobody, with /health silent: a detokenizer that hangs.
    snapshot["http"]["metrics"].update(tokens_delta=26, decode_delta=4)
    snapshot["http"]["health"] = {"result": "unavailable", "code": 503, "seconds": 20.0}
    assert verdict(snapshot)["state"] == "stuck"


def test_a_server_that_was_told_to_stop_is_draining_whatever_it_still_generates() -> None:
    snapshot = snapshots.build("serving")
    at = snapshot["collected_at"]
    snapshot["log"]["hits"]["draining"] = _hit("SIGTERM received. signum=None frame=None. Draining requests and shutting down...", at - 8)
    snapshot["log"]["silent_s"] = 3.0
    told = verdict(snapshot)
    assert (told["state"], told["phase"], told["action"]) == ("stopped", "draining", "wait")


def test_a_shutdown_that_waits_for_nothing_that_ends_is_stuck() -> None:
    """Seen on the real engine: SIGTERM while /server_info hung; the workers were killed, and main waited for the request for ever."""
    snapshot = snapshots.build("serving")
    at = snapshot["collected_at"]
    snapshot["log"]["hits"]["draining"] = _hit("SIGTERM received. signum=None frame=None. Draining requests and shutting down...", at - 60)
    snapshot["log"]["hits"]["stopping"] = _hit("INFO:     Waiting for background tasks to complete. (CTRL+C to force quit)", at - 42)
    main = snapshot["processes"]["main"]
    snapshot["processes"].update(members=[main], schedulers=0, schedulers_alive=0)
    snapshot["port"].update(listening=False, owner_pid=None, ours=None)
    snapshot["http"] = {"status": "ok", "generate": {"result": "refused"}, "health": {"result": "refused"}}
    snapshot["log"]["silent_s"] = 10.0
    assert (verdict(snapshot)["state"], verdict(snapshot)["action"]) == ("stopped", "wait")
    snapshot["log"]["silent_s"] = 42.0
    told = verdict(snapshot)
    assert (told["state"], told["cause"], told["action"]) == ("stuck", "shutdown_hang", "restart")


def test_an_end_in_good_order_is_no_crash_where_no_manager_knows_better() -> None:
    snapshot = snapshots.build("serving")
    at = snapshot["collected_at"]
    absent = {"status": "absent", "reason": "no service manager is known"}
    snapshot["service"] = {**absent, "state": None, "desired": None, "exit_code": None, "exit_signal": None}
    snapshot["processes"] = {**absent, "main": None, "members": [], "schedulers": 0, "schedulers_alive": 0}
    snapshot["port"] = {"status": "ok", "listening": False, "ours": None}
    snapshot["http"] = {"status": "ok", "generate": {"result": "refused"}}
    snapshot["log"]["hits"]["draining"] = _hit("SIGTERM received. signum=None frame=None. Draining requests and shutting down...", at - 5)
    assert verdict(snapshot)["state"] == "crashed"
    snapshot["log"]["hits"]["finished"] = _hit("INFO:     Finished server process [27093]", at - 3)
    told = verdict(snapshot)
    assert (told["state"], told["action"]) == ("stopped", "none")


def test_a_host_without_gpus_needs_no_tool_for_them_before_a_restart() -> None:
    snapshot = snapshots.build("serving")
    absent = {"status": "absent", "reason": "no such file"}
    snapshot["processes"] = {**absent, "main": None, "members": [], "schedulers": 0, "schedulers_alive": 0}
    snapshot["service"].update(state="failed", exit_signal=9, main_pid=None)
    snapshot["port"] = {"status": "ok", "listening": False, "ours": None}
    snapshot["http"] = {"status": "ok", "generate": {"result": "refused"}}
    snapshot["gpus"] = {**absent, "devices": [], "count": None}
    told = verdict(snapshot)
    assert (told["state"], told["action"], "gpus" in told["missing"]) == ("crashed", "escalate", True)
    snapshot["target"]["gpus_expected"] = 0
    told = verdict(snapshot)
    assert (told["state"], told["action"], "gpus" in told["missing"]) == ("crashed", "restart", False)


def test_an_engine_that_goes_down_without_its_detokenizer_is_crashed() -> None:
    """Seen on the real engine: its scheduler lives on for a minute, and nothing answers."""
    snapshot = snapshots.build("serving")
    at = snapshot["collected_at"]
    snapshot["log"]["hits"].update(
        child_crashed=_hit("Subprocess detokenizer (pid=9) crashed with exit code -9. Triggering SIGQUIT for cleanup...", at - 4),
        sigquit=_hit("SIGQUIT received. signum=None, frame=None. It usually means one child failed.", at - 4),
    )
    assert verdict(snapshot)["state"] == "serving"
    snapshot["http"]["generate"] = {"result": "timeout", "tokens": 0, "seconds": 10.0, "code": None, "error": None, "asked_at": at}
    snapshot["http"]["metrics"] = {"first": None, "second": None, "tokens_delta": None}
    snapshot["http"]["health"] = {"result": "timeout", "code": None, "seconds": 25.0}
    told = verdict(snapshot)
    assert (told["state"], told["action"]) == ("crashed", "restart")


def test_a_server_that_got_no_port_never_serves() -> None:
    """Seen on the real engine: it lives on for two minutes and still logs."""
    snapshot = snapshots.build("serving")
    at = snapshot["collected_at"]
    snapshot["log"]["hits"].pop("ready", None)
    line = "ERROR:    [Errno 98] error while attempting to bind on address ('127.0.0.1', 30000): address already in use"
    snapshot["log"]["hits"].update(bind_failed=_hit(line, at - 1), address_in_use=_hit(line, at - 1))
    snapshot["log"]["silent_s"] = 1.0
    snapshot["port"].update(listening=True, owner_pid=9, ours=False)
    snapshot["http"] = {"status": "absent", "generate": {"result": "skipped"}}
    told = verdict(snapshot)
    assert (told["state"], told["cause"], told["action"]) == ("crashed", "port_in_use", "repair")


def test_a_node_behind_the_first_one_serves_without_an_api() -> None:
    """Seen on the real engine: its port answers /health with 200 and everything else with 404."""
    snapshot = snapshots.build("serving")
    snapshot["http"]["generate"] = {"result": "error", "tokens": 0, "seconds": 0.1, "code": 404, "error": "HTTP 404", "asked_at": None}
    snapshot["http"]["metrics"] = {"first": None, "second": None, "tokens_delta": None}
    assert verdict(snapshot)["state"] == "degraded"
    snapshot["target"]["command"] = [*snapshot["target"]["command"], "--nnodes", "2", "--node-rank", "1"]
    told = verdict(snapshot)
    assert (told["state"], told["action"]) == ("serving", "none")
    snapshot["processes"]["schedulers_alive"] -= 1
    assert verdict(snapshot)["state"] == "crashed"


def test_our_own_request_that_is_computed_slowly_is_no_hang() -> None:
    """Seen on the real engine on a full machine: 25 tokens, all of them ours, 10 s were too short, and /health took 3 s."""
    snapshot = snapshots.build("green_freeze")
    now = snapshot["collected_at"]
    snapshot["http"]["generate"].update(seconds=10.0, asked_at=now)
    counters = {"realtime_tokens_total": 128.0, "num_running_reqs": 0.0, "num_queue_reqs": 0.0, "http_requests_active": 1.0}
    later = {**counters, "realtime_tokens_total": 153.0}
    snapshot["http"]["metrics"] = {"first": counters, "second": later, "tokens_delta": 25, "decode_delta": 3}
    snapshot["http"]["health"] = {"result": "ok", "code": 200, "seconds": 3.1}
    snapshot["gpus"] = {"status": "absent", "reason": "no such file", "devices": [], "count": None}
    snapshot["log"]["silent_s"] = 0.1
    told = verdict(snapshot)
    assert (told["state"], told["action"]) == ("unknown", "wait")
    # One token that came out is a proof.
    snapshot["http"]["generate"]["tokens"] = 1
    assert verdict(snapshot)["state"] == "serving"
    # Nothing came out, now and minutes ago: what it computes reaches nobody.
    snapshot["http"]["generate"]["tokens"] = 0
    main = snapshot["processes"]["main"]
    visit = {"at": now - 200, "first_at": now - 200, "count": 1, "main_pid": main["pid"], "main_start": main["start_time"]}
    snapshot["records"] = {"visits": {"visits": [{**visit, "tokens": 100, "generate": "timeout"}]}}
    assert verdict(snapshot)["state"] == "stuck"
