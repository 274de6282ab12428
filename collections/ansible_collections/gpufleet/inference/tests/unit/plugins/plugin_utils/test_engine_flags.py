# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Flags are judged as the pinned release would."""

from __future__ import annotations

import pytest
from ansible_collections.gpufleet.inference.plugins.plugin_utils import engine_flags
from ansible_collections.gpufleet.inference.plugins.plugin_utils.profiles import DeploymentError


@pytest.mark.parametrize(
    ("version", "table"),
    [("0.5.9", "0.5.9"), ("0.5.15", "0.5.9"), ("0.5.16", "0.5.16"), ("0.5.22.post1", "0.5.16"), ("0.6.0", "0.5.23"), ("0.5.1", "0.5.9")],
)
def test_the_nearest_table_that_is_not_newer(version, table):
    assert engine_flags.table(version).release == table


def test_releases_are_ordered():
    releases = ["0.5.9rc1", "0.5.9", "0.5.9.post1", "0.5.10", "0.5.23+cu130", "0.6"]
    assert sorted(releases, key=engine_flags.version_key) == releases
    with pytest.raises(DeploymentError, match="'latest' is no SGLang release"):
        engine_flags.version_key("latest")


def test_the_floor():
    engine_flags.check_floor("0.5.9")
    with pytest.raises(DeploymentError, match=r"0\.5\.8\.post1 is older than the floor 0\.5\.9: .*Kimi-K2\.5"):
        engine_flags.check_floor("0.5.8.post1")


@pytest.mark.parametrize(
    ("argv", "version", "message"),
    [
        (["--cuda-graph-max-bs", "16"], "0.5.23", "no longer a flag of SGLang 0.5.23; use --cuda-graph-max-bs-decode"),
        (["--torchao-config", "x"], "0.5.23", "--torchao-config is no longer a flag of SGLang 0.5.23"),
        (["--atention-backend", "triton"], "0.5.23", "not a flag of SGLang 0.5.23; close to it: --attention-backend"),
        (["--attn-dp-size", "8"], "0.5.10", "not a flag of SGLang 0.5.10 (judged by the flags of 0.5.9)"),
        (["--tp", "8"], "0.5.23", "close to it: --tp-size"),
        (["--attention-backend", "cutlass_mla"], "0.5.23", "'cutlass_mla' is not accepted by SGLang 0.5.23; accepted are triton"),
        (["--tp-size", "eight"], "0.5.23", "--tp-size: needs a whole number, found 'eight'"),
        (["--mem-fraction-static", "high"], "0.5.23", "--mem-fraction-static: needs a number"),
        (["--tp-size"], "0.5.23", "--tp-size: needs a value"),
        (["--tp-size", "8", "8"], "0.5.23", "--tp-size: takes one value, found '8 8'"),
        (["--enable-metrics", "yes"], "0.5.23", "--enable-metrics: takes no value, found 'yes'"),
        (["stray", "--tp-size", "8"], "0.5.23", "'stray' belongs to no flag"),
        (["--log-requests-level", "9"], "0.5.23", "'9' is not accepted"),
        # from here on what the engine's own parser takes
        (["--page-size", "-16"], "0.5.23", "--page-size: expected 1 or more, found -16"),
        (["--hicache-size", "-1"], "0.5.9", "--hicache-size: expected 0 or more, found -1"),
        (["--chunked-prefill-size", "-2"], "0.5.23", "--chunked-prefill-size: expected -1 or more, found -2"),
        (["--nccl-port", "99999"], "0.5.23", "--nccl-port: expected a number from 1 to 65535, found 99999"),
        (["--grpc-port=0"], "0.5.23", "--grpc-port: expected a number from 1 to 65535, found 0"),
        (["--cuda-graph-bs-decode", "1", "0"], "0.5.23", "--cuda-graph-bs-decode: expected 1 or more, found 0"),
        (["--schedule-conservativeness", "-0.5"], "0.5.23", "--schedule-conservativeness: expected 0 or more, found -0.5"),
        (["--schedule-conservativeness", "nan"], "0.5.23", "--schedule-conservativeness: expected 0 or more, found nan"),
        (["--nnodes", "0"], "0.5.23", "--nnodes: expected 1 or more, found 0"),
        (["--log-level", "INFO"], "0.5.23", "'INFO' is not accepted"),
    ],
)
def test_what_the_release_would_refuse(argv, version, message):
    (error,) = engine_flags.check(argv, version)
    assert message in error


@pytest.mark.parametrize(
    ("argv", "version"),
    [
        (["--cuda-graph-max-bs", "16"], "0.5.9"),
        (["--attention-backend", "cutlass_mla"], "0.5.16"),
        (["--tensor-parallel-size", "8"], "0.5.9"),
        (["--tensor-parallel-size=8"], "0.5.23"),
        (["--bucket-time-to-first-token", "0.1", "1", "5"], "0.5.23"),
        (["--log-requests-level", "2"], "0.5.23"),
        (["--chunked-prefill-size", "-1"], "0.5.9"),
        (["--random-seed", "-7", "--default-priority-value", "-1"], "0.5.23"),
        (["--nccl-port", "65535"], "0.5.23"),
        (["--log-level-http", "trace"], "0.5.23"),
        ([], "0.5.23"),
    ],
)
def test_what_it_accepts(argv, version):
    assert engine_flags.check(argv, version) == []


def test_parse_reads_a_command_as_argparse_does():
    argv = [
        "python3",
        "-m",
        "sglang.launch_server",
        "--model",
        "/m",
        "--tp",
        "8",
        "--context-length=4096",
        "--trust-remote-code",
        "--p",
        "1",
    ]
    assert engine_flags.parse(argv, "0.5.23") == {"model-path": "/m", "tp-size": 8, "context-length": 4096, "trust-remote-code": True}
    assert engine_flags.known("--tp-size", "0.5.9") == engine_flags.known("--tensor-parallel-size", "0.5.9")


def test_every_limit_is_of_a_flag_that_takes_numbers():
    for name, (low, high) in engine_flags._data()["limits"].items():
        flags = [flag for release in engine_flags._data()["releases"] if (flag := engine_flags.known(name, release))]
        assert flags and all(flag.kind in ("int", "float") for flag in flags), name
        assert low is None or high is None or low < high, name
