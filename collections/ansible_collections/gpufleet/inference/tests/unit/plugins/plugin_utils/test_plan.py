# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The rails, one by one and as properties of any fleet."""

from __future__ import annotations

import copy
import time

import pytest
from ansible_collections.gpufleet.inference.plugins.plugin_utils import deployment, plan, plan_host
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

NOW = 1_800_000_000.0
HEAL = {"mode": "heal"}
GATES = {"processes": True, "kernel": True, "gpus": True}


def manifest(profile="flashinfer"):
    built = deployment.build({"profile": profile, "model_path": "/m"})
    return {**built, "engine_version": "0.5.23", "gpu_model": None}


FLASHINFER, TRITON = manifest(), manifest("triton_nccl_tuned")


def stuck(action="reconfigure", **verdict):
    return {
        "verdict": {
            "state": "stuck",
            "phase": "weights_loading",
            "cause": "sm120_unsupported_backend",
            "confidence": "low",
            "action": action,
            "forbid": [],
            "proof": "no_progress",
            "still": {"visits": 2, "seconds": 150.0},
            "since": "2027-01-15T07:00:00Z",
            "summary": "hangs after the bar",
            **verdict,
        },
        "gates": dict(GATES),
        "target": {},
        "records": {"manifest": FLASHINFER, "visits": {"visits": [{"main_pid": 7, "main_start": NOW - 900.0}]}},
    }


def fine(state="serving", action="none"):
    return {
        "verdict": {"state": state, "phase": state, "action": action, "summary": state},
        "gates": dict(GATES),
        "records": {},
        "target": {},
    }


def attempt(ago, **row):
    return {
        "at": NOW - ago,
        "incident": "abc",
        "action": "restart",
        "result": "failed",
        "from_profile": "flashinfer",
        "to_profile": "flashinfer",
        **row,
    }


def one(host, policy=None, **records):
    """Plans for a host among two that are well."""
    host = copy.deepcopy(host)
    host["records"].update(records)
    planned = plan.plan_fleet({"gpu01": fine(), "gpu02": host, "gpu03": fine("starting", "wait")}, HEAL if policy is None else policy, NOW)
    return planned["hosts"]["gpu02"], planned["fleet"]


def test_the_incident_moves_one_host_to_triton():
    decision, fleet = one(stuck())
    assert decision["decision"] == "act"
    assert decision["action"] == "reconfigure"
    assert (decision["profile_from"], decision["profile_to"]) == ("flashinfer", "triton_nccl_tuned")
    assert decision["differs"] == ["attention_backend: flashinfer -> triton"]
    assert decision["expires"] == NOW + 2592000
    assert fleet == {"size": 3, "bad": ["gpu02"], "newly_bad": ["gpu02"], "budget": 1, "breaker": "closed", "page": False, "reasons": []}


def test_observe_is_the_default_and_says_what_it_would_do():
    decision, _fleet = one(stuck(), {})
    assert (decision["decision"], decision["profile_to"]) == ("would_act", "triton_nccl_tuned")
    assert decision["reasons"][-1] == "mode observe: nothing is touched"


@pytest.mark.parametrize(("visits", "seconds", "proof"), [(1, 150, "no_progress"), (2, 119, "no_progress"), (0, 0, None)])
def test_no_progress_alone_needs_confirmation(visits, seconds, proof):
    decision, _fleet = one(stuck(still={"visits": visits, "seconds": seconds}, proof=proof))
    assert decision["decision"] == "wait"
    assert "rail confirmation" in decision["reasons"][0]


@pytest.mark.parametrize("changes", [{"proof": "engine"}, {"proof": "signature"}, {"state": "crashed", "proof": None}])
def test_a_crash_or_the_engines_word_needs_none(changes):
    decision, _fleet = one(stuck(still={"visits": 1, "seconds": 0.0}, **changes))
    assert decision["decision"] == "act"


@pytest.mark.parametrize("source", ["processes", "kernel", "gpus"])
@pytest.mark.parametrize("value", [False, "unavailable", None])
def test_nothing_destructive_without_evidence(source, value):
    host = stuck()
    host["gates"][source] = value
    decision, _fleet = one(host)
    assert decision["decision"] == "refused"
    assert decision["reasons"] == [f"rail evidence: not readable on this host: {source}"]


def test_a_host_without_kernel_log_is_readable():
    host = stuck()
    host["gates"] = {"processes": "ok", "kernel": "absent", "gpus": "ok"}
    assert one(host)[0]["decision"] == "act"
    host["gates"]["gpus"] = "absent"
    assert one(host)[0]["decision"] == "refused"


@pytest.mark.parametrize(
    ("name", "record", "decision", "reason"),
    [
        (
            "marks",
            {"marks": [{"kind": "maintenance", "owner": "ann", "reason": "fans", "expires": None}]},
            "refused",
            "maintenance by ann: fans",
        ),
        ("marks", {"marks": [{"kind": "quarantine", "owner": "gpufleet", "reason": "x", "expires": NOW + 9}]}, "refused", "quarantine by"),
        (
            "marks",
            {"marks": [{"kind": "pinned", "owner": "ann", "reason": "bench", "expires": "2099-01-01T00:00:00Z"}]},
            "refused",
            "pinned by ann",
        ),
        ("marks", {"marks": [{"kind": "maintenance", "owner": "ann", "reason": "fans", "expires": NOW - 1}]}, "act", ""),
        ("marks", {"error": "not JSON"}, "refused", "rail records: the host's history can not be read (marks: not JSON)"),
        ("lease", {"owner": "deploy-1", "purpose": "deploy", "expires": NOW + 60}, "wait", "rail lease: held by deploy-1 for deploy"),
        ("lease", {"owner": "deploy-1", "purpose": "deploy", "expires": NOW - 60}, "act", ""),
        ("attempts", {"attempts": [attempt(100)]}, "wait", "rail cooldown: the last attempt was 100 s ago"),
        ("attempts", {"attempts": [attempt(n * 1000) for n in (1, 2, 3)]}, "quarantine", "rail attempts: 3 in the last 86400 s, at most 3"),
        ("attempts", {"attempts": [attempt(n * 90000) for n in (1, 2, 3)]}, "act", ""),
        ("manifest", None, "escalate", "no manifest on the host"),
    ],
)
def test_what_the_host_keeps_binds_the_plan(name, record, decision, reason):
    found, fleet = one(stuck(), **{name: record})
    assert found["decision"] == decision
    assert reason in found["reasons"][0]
    assert fleet["page"] == (decision in ("quarantine", "escalate"))


def test_our_own_lease_does_not_stop_us():
    assert one(stuck(), {**HEAL, "owner": "run-1"}, lease={"owner": "run-1", "expires": NOW + 60})[0]["decision"] == "act"


def test_a_pinned_host_may_be_restarted():
    pinned = {"marks": [{"kind": "pinned", "owner": "ann", "reason": "bench", "expires": None}]}
    decision, _fleet = one(stuck("restart"), marks=pinned)
    assert (decision["decision"], decision["action"], decision["profile_to"]) == ("act", "restart", "flashinfer")


def test_restarts_that_do_not_help_end_in_the_next_profile():
    once = {"attempts": [attempt(2000)]}
    twice = {"attempts": [attempt(3000), attempt(2000)]}
    assert one(stuck("restart"), attempts=once)[0]["action"] == "restart"
    decision, _fleet = one(stuck("restart"), attempts=twice)
    assert (decision["action"], decision["profile_to"]) == ("reconfigure", "triton_nccl_tuned")
    assert decision["incident"] == "abc"


def test_a_profile_that_would_change_nothing_or_was_tried_is_passed_over():
    host = stuck()
    host["records"]["manifest"] = TRITON
    decision, _fleet = one(host)
    assert decision["profile_to"] == "safe"
    assert decision["reasons"][0] == "triton_nccl_tuned would change nothing in effect"

    tried = {"attempts": [attempt(5000, action="reconfigure", from_profile="triton_nccl_tuned", to_profile="safe")]}
    decision, _fleet = one(host, attempts=tried)
    assert decision["decision"] == "quarantine"
    assert "no profile left to try: triton_nccl_tuned was tried already; safe was tried already" in decision["reasons"][0]


def test_no_profile_left_at_the_first_time_is_for_a_person():
    host = {**stuck(), "ladder": ["flashinfer"]}
    assert one(host)[0]["decision"] == "escalate"


def test_a_flag_of_the_user_that_undoes_the_fallback_makes_it_a_no_op():
    host = {**stuck(), "ladder": ["triton_nccl_tuned"], "extra_flags": {"attention-backend": "flashinfer"}}
    decision, _fleet = one(host)
    assert decision["decision"] == "escalate"
    assert "triton_nccl_tuned would change nothing in effect" in decision["reasons"][0]


def test_what_really_runs_is_compared_not_the_name_of_a_profile():
    host = stuck()
    host["target"] = {
        "command": ["python3", "-m", "sglang.launch_server", "--tp", "8", "--num-continuous-decode-steps", "4"],
        "profile": "flashinfer",
    }
    assert one(host)[0]["profile_to"] == "safe"


def test_a_ladder_that_can_not_be_deployed_is_no_crash():
    decision, _fleet = one({**stuck(), "ladder": ["gone", "safe"]})
    assert decision["profile_to"] == "safe"
    assert "gone can not be deployed: unknown profile 'gone'" in decision["reasons"][0]


@pytest.mark.parametrize("action", ["restart", "reconfigure"])
def test_what_the_verdict_forbids_is_not_done(action):
    decision, _fleet = one(stuck(action, forbid=[action]))
    assert decision["decision"] == "escalate"


@pytest.mark.parametrize(
    ("host", "decision"),
    [
        (fine(), "none"),
        (fine("serving", "restart"), "none"),
        (fine("starting", "restart"), "wait"),
        (fine("stopped", "restart"), "none"),
        (fine("unknown", "restart"), "refused"),
        (fine("degraded", "none"), "none"),
        (fine("degraded", "restart"), "escalate"),
        (fine("gpu_fault", "restart"), "escalate"),
        (fine("gpu_fault", "quarantine"), "quarantine"),
        (fine("host_fault", "repair"), "escalate"),
        (fine("stuck", "escalate"), "escalate"),
        (fine("nonsense", "restart"), "refused"),
        ({"unreachable": True, "msg": "timed out", "records": {}}, "unreachable"),
        ({"failed": True, "msg": "boom", "records": {}}, "refused"),
    ],
)
def test_who_is_never_acted_on(host, decision):
    assert one(host)[0]["decision"] == decision


def test_the_incident_id_is_stable_until_a_cure():
    first = one(stuck())[0]["incident"]
    assert one(stuck())[0]["incident"] == first
    again = attempt(2000, incident=first)
    restarted = {"visits": [{"main_pid": 8, "main_start": NOW}]}
    assert one(stuck(), attempts={"attempts": [again]}, visits=restarted)[0]["incident"] == first
    assert one(stuck(), attempts={"attempts": [{**again, "result": "cured"}]}, visits=restarted)[0]["incident"] != first


def fleet_of(size, sick):
    return {f"gpu{n:04}": stuck("restart") if n < sick else fine() for n in range(size)}


@pytest.mark.parametrize(
    ("size", "sick", "acts"),
    [(1, 1, 1), (2, 2, 1), (3, 1, 1), (3, 2, 0), (4, 2, 1), (4, 3, 0), (10, 5, 2), (10, 6, 0), (40, 20, 8), (100, 100, 0)],
)
def test_the_breaker(size, sick, acts):
    planned = plan.plan_fleet(fleet_of(size, sick), HEAL, NOW)
    assert sum(d["decision"] == "act" for d in planned["hosts"].values()) == acts
    assert planned["fleet"]["page"] == (acts == 0)
    assert planned["fleet"]["breaker"] == ("open" if acts < sick else "closed")


def test_the_budget_remembers_other_runs_and_lets_a_host_try_again():
    hosts = fleet_of(5, 2)
    hosts["gpu0001"]["records"]["attempts"] = {"attempts": [attempt(700)]}
    planned = plan.plan_fleet(hosts, HEAL, NOW)["hosts"]
    assert planned["gpu0001"]["decision"] == "act"
    assert planned["gpu0000"]["decision"] == "refused"
    assert "rail breaker: at most 1 of 5 hosts in 3600 s, 1 used" in planned["gpu0000"]["reasons"]


def test_no_more_at_once_than_the_budget_even_of_hosts_acted_on_before():
    hosts = fleet_of(5, 2)
    for name in ("gpu0000", "gpu0001"):
        hosts[name]["records"]["attempts"] = {"attempts": [attempt(700)]}
    planned = plan.plan_fleet(hosts, HEAL, NOW)["hosts"]
    assert [planned[name]["decision"] for name in ("gpu0000", "gpu0001")] == ["act", "refused"]


def test_with_two_hosts_the_second_follows_once_the_first_is_well():
    hosts = {"gpu01": fine(), "gpu02": stuck("restart")}
    for result, decision in (("cured", "act"), ("failed", "refused"), ("running", "refused")):
        hosts["gpu01"]["records"] = {"attempts": {"attempts": [attempt(300, result=result)]}}
        assert plan.plan_fleet(hosts, HEAL, NOW)["hosts"]["gpu02"]["decision"] == decision


def test_a_network_cut_stops_everything():
    hosts = {"gpu01": {"unreachable": True}, "gpu02": {"unreachable": True}, "gpu03": stuck()}
    planned = plan.plan_fleet(hosts, HEAL, NOW)
    assert planned["hosts"]["gpu03"]["decision"] == "refused"
    assert planned["fleet"]["page"]


def test_hosts_known_to_be_bad_do_not_trip_the_breaker():
    hosts = fleet_of(3, 2)
    hosts["gpu0001"]["records"]["marks"] = {"marks": [{"kind": "quarantine", "owner": "gpufleet", "reason": "x", "expires": None}]}
    assert plan.plan_fleet(hosts, HEAL, NOW)["hosts"]["gpu0000"]["decision"] == "act"


def test_a_part_of_the_fleet_needs_its_size():
    policy = {**HEAL, "partial": "2 hosts of group sglang are left out"}
    planned = plan.plan_fleet({"gpu01": stuck()}, policy, NOW)
    assert planned["hosts"]["gpu01"]["decision"] == "refused"
    assert "rail fleet: this is not the whole fleet" in planned["fleet"]["reasons"][0]
    assert plan.plan_fleet({"gpu01": stuck()}, {**policy, "fleet_size": 3}, NOW)["hosts"]["gpu01"]["decision"] == "act"


def test_quarantine_says_until_when():
    decision, fleet = one(fine("gpu_fault", "quarantine"), {**HEAL, "quarantine_ttl": 60})
    assert (decision["action"], decision["expires"], fleet["page"]) == ("quarantine", NOW + 60, True)
    assert one(fine("gpu_fault", "quarantine"), {})[0]["decision"] == "would_act"


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ({"mode": "kill"}, "mode: expected observe or heal"),
        ({"max_attemps": 3}, "unknown policy 'max_attemps'"),
        ({"cooldown": -1}, "cooldown: expected 0 or more"),
        ({"fleet_size": 0}, "fleet_size: expected 1 or more"),
    ],
)
def test_a_policy_without_sense_is_an_error(policy, message):
    with pytest.raises(ValueError, match=message):
        plan.plan_fleet({}, policy, NOW)


def mostly(usual, *others):
    """Draws the usual value nine times out of ten, so that many hosts pass every rail or fail at one."""
    return st.integers(0, 9).flatmap(lambda n: st.just(usual) if n else st.sampled_from(others))


rows = st.lists(
    st.builds(
        attempt,
        st.one_of(st.floats(601, 3599), st.floats(0, 100_000)),
        result=st.sampled_from(["cured", "failed", "running", None]),
        action=st.sampled_from(["restart", "reconfigure"]),
        to_profile=st.sampled_from(["safe", "triton_nccl_tuned", None]),
    ),
    max_size=3,
)
records = st.fixed_dictionaries(
    {
        "manifest": mostly(FLASHINFER, TRITON, None, {"error": "x"}),
        "attempts": st.one_of(st.none(), st.none(), st.builds(lambda found: {"attempts": found}, rows)),
        "lease": mostly(None, {"owner": "x", "expires": NOW + 1}, {"owner": "x", "expires": NOW - 1}),
        "marks": mostly(None, {"marks": [{"kind": "maintenance", "owner": "x"}]}, {"marks": "?"}, {"error": "x"}),
    }
)
verdicts = st.fixed_dictionaries(
    {
        "state": mostly("stuck", *plan_host.STATES, "?"),
        "action": mostly("restart", *plan_host.ACTIONS, None),
        "proof": mostly("engine", "signature", "no_progress", None),
        "still": mostly({"visits": 3, "seconds": 300.0}, {"visits": 1}, None, {"visits": "x"}),
        "since": st.sampled_from([None, "2027-01-15T07:00:00Z"]),
        "cause": st.sampled_from([None, "a", "b"]),
        "forbid": mostly([], ["restart"], None),
    }
)
gates = mostly(GATES, {}, {**GATES, "gpus": False}, {**GATES, "kernel": "unavailable"})
sick = st.fixed_dictionaries({"verdict": verdicts, "records": records, "gates": gates, "target": st.just({})})
blind = st.sampled_from([{"unreachable": True}, {"failed": True, "msg": "x"}, {}, {"verdict": None, "records": None}])
policies = st.fixed_dictionaries(
    {
        "mode": st.sampled_from(["heal", "heal", "observe"]),
        "breaker_percent": mostly(20.0, 0.0, 3.5, 100.0),
        "breaker_max": mostly(8, 0, 1, 2),
    },
    optional={"fleet_size": st.integers(1, 300), "partial": mostly(None, "x"), "max_attempts": st.integers(1, 5)},
)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    pool=st.lists(st.one_of(sick, sick, sick, blind), min_size=1, max_size=10),
    size=st.one_of(st.integers(0, 12), st.integers(0, 200)),
    one_in=st.sampled_from([1, 2, 3, 10]),
    policy=policies,
    shuffle=st.randoms(use_true_random=False),
)
def test_laws_of_every_plan(pool, size, one_in, policy, shuffle):
    fleet = {f"gpu{n:03}": fine() if n % one_in else pool[n % len(pool)] for n in range(size)}
    before = copy.deepcopy(fleet)
    planned = plan.plan_fleet(fleet, policy, NOW)
    assert fleet == before
    assert set(planned["hosts"]) == set(fleet)

    acts = [name for name, d in planned["hosts"].items() if d["decision"] == "act"]
    assert len(acts) <= planned["fleet"]["budget"] <= max(1, planned["fleet"]["size"])
    assert not acts or policy["mode"] == "heal"
    for name in acts:
        seen = fleet[name]
        resumed = seen["verdict"]["state"] == "stopped" and planned["hosts"][name]["resumes"]
        assert seen["verdict"]["state"] in ("stuck", "crashed") or resumed
        assert seen["gates"] == GATES
        assert planned["hosts"][name]["action"] in ("restart", "reconfigure")
        assert planned["hosts"][name]["action"] == "restart" or planned["hosts"][name]["differs"] or resumed
    newly_bad = planned["fleet"]["newly_bad"]
    if size >= 3 and len(newly_bad) * 2 > size:
        assert not acts
        assert planned["fleet"]["page"]
    if policy.get("partial") and not policy.get("fleet_size"):
        assert not acts
    for decision in planned["hosts"].values():
        assert decision["reasons"]
    event(f"hosts acted on: {min(len(acts), 3)}")

    names = list(fleet)
    shuffle.shuffle(names)
    assert plan.plan_fleet({name: fleet[name] for name in names}, policy, NOW) == planned


def test_four_thousand_hosts():
    begin = time.monotonic()
    planned = plan.plan_fleet({**fleet_of(4000, 0), **{f"gpu{n:04}": stuck() for n in range(1500)}}, {**HEAL, "breaker_max": 800}, NOW)
    assert sum(d["decision"] == "act" for d in planned["hosts"].values()) == 800
    assert time.monotonic() - begin < 20


GARBAGE = [5, "x", [], [5], True, {"attempts": {}, "marks": "x"}, {"attempts": [None], "marks": [7]}]


@pytest.mark.parametrize("name", ["attempts", "marks", "lease"])
@pytest.mark.parametrize(
    "record", [*GARBAGE, {"attempts": [{"result": "failed"}], "marks": [[]]}, {"attempts": [attempt(1, at="x")], "marks": [1]}]
)
def test_a_record_of_another_shape_is_not_an_empty_one(name, record):
    decision, _fleet = one(stuck(), **{name: record})
    assert decision["decision"] == "refused" and "rail records" in decision["reasons"][0]


def test_a_mark_of_a_kind_that_we_do_not_know_binds():
    decision, _fleet = one(stuck(), marks={"marks": [{"kind": "Hands off", "owner": "alice", "reason": "ask me"}]})
    assert decision["decision"] == "refused" and "Hands off by alice" in decision["reasons"][0]


@pytest.mark.parametrize("skew", [-30 * 86400.0, 30 * 86400.0])
def test_the_hosts_own_clock_ages_its_records(skew):
    host = {**stuck(), "at": NOW + skew}
    held = {"marks": [{"kind": "maintenance", "owner": "alice", "expires": NOW + skew + 60}]}
    assert one(host, marks=held)[0]["decision"] == "refused"
    many = {"attempts": [attempt(-skew + 3600 * number, action="reconfigure") for number in (1, 2, 3)]}
    assert one(host, attempts=many)[0]["decision"] == "quarantine"
    recent = {"attempts": [attempt(-skew + 60)]}
    assert one(host, attempts=recent)[0]["decision"] == "wait"


def cut_off(**row):
    ended = {"id": "abc-1", "action": "reconfigure", "result": "running", "to_profile": "triton_nccl_tuned", **row}
    return {"manifest": FLASHINFER, "attempts": {"attempts": [attempt(60, **ended)]}}


def test_a_repair_that_was_cut_off_after_the_stop_goes_on():
    decision, _fleet = one(fine("stopped"), **cut_off())
    assert (decision["decision"], decision["action"], decision["profile_to"]) == ("act", "reconfigure", "triton_nccl_tuned")
    assert (decision["incident"], decision["resumes"]) == ("abc", "abc-1")
    assert "cut off" in decision["reasons"][-1]


@pytest.mark.parametrize(
    ("records", "decision"),
    [
        ({**cut_off(), "lease": {"owner": "other", "expires": NOW + 60}}, "wait"),
        ({**cut_off(result="failed")}, "none"),
        ({**cut_off(), "marks": {"marks": [{"kind": "maintenance", "owner": "ann", "reason": "fans"}]}}, "refused"),
        (
            {"attempts": {"attempts": [attempt(60), attempt(50), attempt(40, id="c", result="running")]}, "manifest": FLASHINFER},
            "quarantine",
        ),
        ({}, "none"),
    ],
)
def test_a_stopped_host_is_otherwise_left_alone(records, decision):
    assert one(fine("stopped"), **records)[0]["decision"] == decision


def again(**changes):
    return {**stuck(), "facts": {"main_pid": 7}, "bundle": "/b", "at": NOW, **changes}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, None),
        ({"verdict": {"state": "serving"}}, "it is serving now"),
        ({"verdict": {"state": "gpu_fault"}}, "it is gpu_fault now"),
        ({"verdict": {"state": "stuck", "forbid": ["reconfigure"]}}, "forbids reconfigure"),
        ({"facts": {"main_pid": 8}}, "another server"),
        ({"records": {"marks": {"marks": [{"kind": "maintenance", "owner": "ann", "reason": "fans"}]}}}, "ann set the mark"),
        ({"bundle": None}, "evidence could not be saved"),
    ],
)
def test_a_plan_is_dropped_when_the_host_is_another_by_now(changes, reason):
    found = plan_host.overtaken({"action": "reconfigure"}, again(), again(**changes), NOW)
    assert (reason is None and found is None) or reason in found
