# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What becomes of a server that runs already."""

from __future__ import annotations

import pytest
from ansible_collections.gpufleet.inference.plugins.module_utils import _redact
from ansible_collections.gpufleet.inference.plugins.plugin_utils import adoption, deployment
from hypothesis import given
from hypothesis import strategies as st

SETTINGS = {
    "profile": "flashinfer",
    "gpu_class": "sm120_pcie",
    "engine_version": "0.5.23",
    "python": "/root/ml-env/bin/python",
    "model_path": "/shared/kimi-k2.5-int4",
    "port": 8000,
}
INCIDENT = [
    "python3",
    "-m",
    "sglang.launch_server",
    "--model-path",
    "/shared/kimi-k2.5-int4",
    "--trust-remote-code",
    "--tp-size",
    "8",
    "--mem-fraction-static",
    "0.85",
    "--host",
    "0.0.0.0",
    "--port",
    "8000",
    "--attention-backend",
    "flashinfer",
    "--num-continuous-decode-steps",
    "4",
    "--disable-custom-all-reduce",
    "--log-level",
    "info",
]


def server(command=None, environment=None, **changes):
    """What the node tells about a server that runs as the settings want it, unless told otherwise."""
    wanted = deployment.build(SETTINGS)
    command = command or wanted["command"]
    environment = wanted["environment"] if environment is None else environment
    seen = {
        "pid": 4711,
        "port": 8000,
        "owner": None,
        "user": "root",
        "work_dir": "/root",
        "venv": "/root/ml-env",
        "model_path": "/shared/kimi-k2.5-int4",
        "command": _redact.argv(command),
        "environment": _redact.environment(environment),
        "secrets": {"salt": "s", "values": _redact.fingerprints(command, environment, "s")},
        "log_path": "/root/sglang.log",
        "kept_by": None,
        "container": False,
    }
    return {**seen, **changes}


def decide(seen, runtime="existing", replace=False, **settings):
    wish = {**SETTINGS, **settings}
    return adoption.decide(seen, deployment.build(wish), wish, runtime, replace)


def outcome(decision):
    return decision["adopt"], decision["replace"], decision["refused"] is not None


@pytest.mark.parametrize(
    ("owner", "runtime", "replace", "profile", "expected"),
    [
        (None, "existing", False, "flashinfer", (True, False, False)),
        (None, "existing", False, "safe", (False, False, True)),
        (None, "existing", True, "safe", (False, True, False)),
        (None, "existing", True, "flashinfer", (False, True, False)),
        (None, "venv", False, "flashinfer", (False, False, True)),
        (None, "venv", True, "flashinfer", (False, True, False)),
        ("service", "existing", True, "safe", (False, False, False)),
        ("adoption", "existing", False, "flashinfer", (True, False, False)),
        ("adoption", "existing", False, "safe", (False, True, False)),
        ("manifest", "venv", False, "flashinfer", (True, False, False)),
        ("manifest", "venv", False, "safe", (False, True, False)),
    ],
)
def test_decisions(owner, runtime, replace, profile, expected):
    assert outcome(decide(server(owner=owner), runtime, replace, profile=profile)) == expected


def test_nothing_runs():
    assert outcome(decide(None)) == (False, False, False)


def test_a_refusal_names_the_server_the_differences_and_the_ways_out():
    told = decide(server(), profile="safe")["refused"]
    for words in (
        "process 4711 (port 8000, in /root, user root)",
        "attention_backend: flashinfer -> triton",
        "NCCL_P2P_DISABLE: not set -> 1",
        "sglang_replace_running: true",
        '"attention-backend": "flashinfer"',
    ):
        assert words in told
    told = decide(server(), runtime="venv")["refused"]
    assert "process 4711" in told and "sglang.launch_server --model-path" in told and "sglang_runtime: existing" in told


def test_the_server_of_the_incident():
    """Started by hand, without what our profiles add: everything that a client or the engine would notice is told."""
    environment = {"NCCL_PROTO": "LL", "NCCL_ALGO": "Ring", "LD_LIBRARY_PATH": "/opt/x"}
    decision = decide(server(INCIDENT, environment))
    told = " ".join(decision["differences"])
    for name in (
        "context_length",
        "served_model_name",
        "reasoning_parser",
        "tool_call_parser",
        "NCCL_P2P_LEVEL",
        "SGLANG_ENABLE_JIT_DEEPGEMM",
    ):
        assert name in told
    assert "log_level" not in told and "enable_metrics" not in told and "attention_backend" not in told
    assert "LD_LIBRARY_PATH" in decision["notes"][0]
    kept = {name.removeprefix("sglang_"): value for name, value in decision["keep"].items()}
    assert outcome(decide(server(INCIDENT, environment), **kept)) == (True, False, False)


def test_another_installation_model_or_port_of_call():
    for changes, name in (
        ({"venv": "/usr"}, "venv: /usr -> /root/ml-env"),
        ({"venv": None}, "venv: None -> /root/ml-env"),
        ({"model_path": "/shared/other"}, "model_path: /shared/other -> /shared/kimi-k2.5-int4"),
    ):
        decision = decide(server(**changes))
        assert decision["differences"] == [name] and decision["refused"]
    command = [word for word in deployment.build(SETTINGS)["command"] if word not in ("--host", "0.0.0.0")]
    assert decide(server(command))["differences"] == ["host: 127.0.0.1 -> 0.0.0.0"]


def test_what_can_not_be_compared_is_not_the_same():
    assert "can not be read" in decide({**server(), "environment": None})["refused"]
    assert "container" in decide(server(container=True))["refused"]


def test_secrets_are_compared_and_never_told():
    command = [*deployment.build(SETTINGS)["command"], "--api-key", "sesame-1"]
    assert outcome(decide(server(command), extra_flags={"api-key": "sesame-1"})) == (True, False, False)
    for flags, told in (({"api-key": "sesame-2"}, "--api-key: another value -> set"), ({}, "--api-key: set -> not set")):
        decision = decide(server(command), extra_flags=flags)
        assert told in decision["refused"] and "sesame" not in decision["refused"]
    assert "--api-key: not set -> set" in decide(server(), extra_flags={"api-key": "sesame-2"})["refused"]
    environment = {**deployment.build(SETTINGS)["environment"], "SGLANG_API_KEY": "sesame-1"}
    assert "SGLANG_API_KEY: set -> not set" in decide(server(environment=environment))["refused"]


def test_who_would_start_it_again_stands_in_the_way_of_a_replacement_only():
    seen = server(kept_by="old.service")
    adopted = decide(seen)
    assert adopted["adopt"] and "old.service" in adopted["notes"][0]
    assert "disable" in decide(seen, replace=True)["refused"]


FLAGS = {
    "attention-backend": ["triton", "flashinfer"],
    "num-continuous-decode-steps": [1, 4, 8],
    "disable-cuda-graph": [True],
    "max-running-requests": [16],
}
VARIABLES = {"NCCL_MIN_NCHANNELS": ["8", "16"], "NCCL_PROTO": ["LL", "Simple"], "SGLANG_X": ["1"]}


def chosen(values):
    return st.fixed_dictionaries({}, optional={name: st.sampled_from(options) for name, options in values.items()})


@given(
    st.sampled_from(["flashinfer", "triton_nccl_tuned", "safe"]), chosen(FLAGS), chosen(VARIABLES), st.sampled_from(["safe", "flashinfer"])
)
def test_what_is_kept_is_what_runs(profile, flags, variables, wish):
    """The variables that a refusal names make the next run adopt."""
    running = deployment.build({**SETTINGS, "profile": profile, "extra_flags": flags, "extra_environment": variables})
    seen = server(running["command"], running["environment"])
    decision = decide(seen, profile=wish)
    kept = {name.removeprefix("sglang_"): value for name, value in decision["keep"].items()}
    assert decision["adopt"] == (not decision["differences"]) and (not kept) == decision["adopt"]
    assert outcome(decide(seen, **{"profile": wish, **kept})) == (True, False, False)
