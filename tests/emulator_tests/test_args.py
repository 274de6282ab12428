# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The parser: exit codes and messages of the real command line."""

from __future__ import annotations

import pytest
from sglang.emulator import args

BASE = ["--model-path", "/m"]


def test_table_is_the_whole_flag_set() -> None:
    parser = args.build_parser()
    assert sum(1 for action in parser._actions if action.option_strings and action.dest != "help") == 531


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--no-such-flag", "1"], "unrecognized arguments: --no-such-flag 1"),
        (["--attention-backend", "magic"], "invalid choice: 'magic'"),
        (["--attention-backend", "cutlass_mla"], "invalid choice: 'cutlass_mla'"),
        (["--pp", "2"], "ambiguous option: --pp"),
        (["--cuda-graph-max-bs", "16"], "ambiguous option: --cuda-graph-max-bs"),
        (["--tp-size", "eight"], "invalid int value: 'eight'"),
        (["--enable-ep-moe"], "unrecognized arguments: --enable-ep-moe"),
        (["--moe-runner-backend", "flashinfer_trtlm"], "invalid choice"),
    ],
)
def test_refused(argv: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        args.parse(BASE + argv)
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert stop.value.code == 2
    assert last.startswith("sglang serve: error: ") and message in last


def test_model_is_required(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        args.parse([])
    assert stop.value.code == 2
    assert "--model-path" in capsys.readouterr().err


def test_accepted_as_the_real_one_does() -> None:
    found = args.parse(
        [*BASE, "--tp", "8", "--mem-fraction", "0.85", "--port", "99999", "--context-length", "-5", "--nccl-init-addr", "a:1"]
    )
    assert (found["tp_size"], found["mem_fraction_static"], found["port"], found["context_length"]) == (8, 0.85, 99999, -5)
    assert found["dist_init_addr"] == "a:1"


def test_defaults_and_kinds() -> None:
    found = args.parse([*BASE, "--cuda-graph-bs-decode", "1", "2", "--disable-cuda-graph", "--no-dllm-fdfo"])
    assert found["watchdog_timeout"] == 300 and found["host"] == "127.0.0.1" and found["port"] == 30000
    assert found["cuda_graph_bs_decode"] == [1, 2] and found["disable_cuda_graph"] is True and found["dllm_fdfo"] is False


def test_config_file(tmp_path: object) -> None:
    path = tmp_path / "c.yaml"  # type: ignore[operator]
    path.write_text("model-path: /m\ntp-size: 4\ntrust-remote-code: true\n")
    found = args.parse(["--config", str(path), "--port", "1234"])
    assert (found["tp_size"], found["trust_remote_code"], found["port"]) == (4, True, 1234)


MODEL = {"model_type": "kimi_k25", "custom_code": True, "context_length": 262144}


@pytest.mark.parametrize(("cap", "backend"), [("12.0", "triton"), ("10.0", "trtllm_mla"), ("9.0", "fa3")])
def test_default_attention_backend(cap: str, backend: str) -> None:
    found, notes = args.resolve(args.parse([*BASE, "--trust-remote-code"]), MODEL, cap)
    assert found["attention_backend"] == backend
    assert notes == ["Attention backend not specified. Use %s backend by default." % backend]


@pytest.mark.parametrize(
    ("argv", "kind"),
    [
        ([], "ValueError"),
        (["--trust-remote-code", "--attention-backend", "fa3"], "AssertionError"),
        (["--trust-remote-code", "--attention-backend", "tokenspeed_mla"], "ValueError"),
        (["--trust-remote-code", "--context-length", "999999"], "ValueError"),
    ],
)
def test_refused_after_parsing(argv: list[str], kind: str) -> None:
    with pytest.raises(args.ConfigError) as error:
        args.resolve(args.parse(BASE + argv), MODEL, "12.0")
    assert error.value.kind == kind
