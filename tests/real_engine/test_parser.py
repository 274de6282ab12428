# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The same command lines for the engine's own parser, for the emulator's and for our table of flags."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpufleet.inference.plugins.module_utils import _engine_parser, _engine_program
from ansible_collections.gpufleet.inference.plugins.plugin_utils import engine_flags

HERE = Path(__file__).parent
EMULATOR = HERE.parent / "emulator" / "src"
VERSION = "0.5.23"
MODEL = ["--model-path", "/m"]

# What both parsers and our table take.
GOOD = [
    ["--tp-size", "8"],
    ["--tensor-parallel-size=8"],
    ["--tp-size=8", "--trust-remote-code", "--mem-fraction-static", "0.85"],
    ["--attention-backend", "triton", "--reasoning-parser", "kimi_k2", "--tool-call-parser", "kimi_k2"],
    ["--kv-cache-dtype", "fp8_e4m3", "--disable-custom-all-reduce"],
    ["--cuda-graph-bs-decode", "1", "2", "4"],
    ["--bucket-time-to-first-token", "0.1", "1", "5"],
    ["--chunked-prefill-size", "-1"],
    ["--default-chat-template-kwargs", '{"thinking": false}'],
    ["--sidecar-args", "[]"],
    ["--json-model-override-args", '{"a": 1}'],
    ["--model-loader-extra-config", '{"enable_multithread_load": true, "num_threads": 16}'],
    ["--no-dllm-fdfo"],
    ["--nccl-init-addr", "10.0.0.1:5000", "--nnodes", "2", "--node-rank", "1"],
    ["--lora-paths"],
    ["--log-requests", "--log-requests-level", "3"],
    ["--disable-cuda-graph"],
    ["--stream-interval", "4", "--num-continuous-decode-steps", "4"],
]
# What both parsers and our table refuse.
BAD = [
    ["--no-such-flag", "1"],
    ["--atention-backend", "triton"],
    ["--attention-backend", "magic"],
    ["--attention-backend", "cutlass_mla"],
    ["--moe-runner-backend", "flashinfer_trtlm"],
    ["--reasoning-parser", "kimi_k9"],
    ["--tp-size", "eight"],
    ["--tp-size", "2.5"],
    ["--tp-size", ""],
    ["--mem-fraction-static", "high"],
    ["--tp-size"],
    ["--cuda-graph-bs-decode"],
    ["--cuda-graph-bs-decode", "1", "two"],
    ["--tp-size", "8", "8"],
    ["--trust-remote-code", "yes"],
    ["--trust-remote-code=yes"],
    ["--default-chat-template-kwargs", "thinking"],
    ["--pp", "2"],
    ["--cuda-graph-max-bs", "16"],
    ["--enable-ep-moe"],
    ["--log-requests-level", "9"],
    ["--max-prefill-tokens", "1x"],
    ["--help"],
    ["stray"],
]
# What both parsers take and only our table refuses, with the reason.
STRICTER = [
    (["--tp", "8"], "close to it: --tp-size"),
    (["--mem-fraction", "0.85"], "close to it: --mem-fraction-static"),
    (["--port", "-1"], "expected"),
    (["--page-size", "-16"], "expected 1 or more"),
    (["--max-running-requests", "0"], "expected 1 or more"),
    (["--nccl-port", "99999"], "from 1 to 65535"),
    (["--log-level", "loud"], "is not accepted"),
    (["--max-total-tokens", "100k"], "needs a whole number"),
]
# What only a parser knows: our table has no accepted values for these.
ENGINE_KNOWS = [
    ["--kv-canary-real-data", "sometimes"],
    ["--lora-target-modules", "q_prok"],
    ["--sidecar-args", "{"],
]
LINES = [*GOOD, *BAD, *(line for line, _why in STRICTER), *ENGINE_KNOWS]


def judge(python: str, environment: dict[str, str]) -> list[dict[str, Any]]:
    """What the parser behind ``python`` says to every line, imported once."""
    program = (
        "import importlib.util, json, sys\n"
        f"spec = importlib.util.spec_from_file_location('program', {_engine_program.__file__!r})\n"
        "program = importlib.util.module_from_spec(spec); spec.loader.exec_module(program)\n"
        "parser = program.engine_parser()\n"
        f"answers = [program.judge(parser, {MODEL!r} + line) for line in json.load(sys.stdin)]\n"
        "print('\\n' + json.dumps(answers))\n"
    )
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", **environment}
    done = subprocess.run(
        [python, "-c", program], input=json.dumps(LINES), env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    answers: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return answers


@pytest.fixture(scope="module")
def engine() -> Any:
    if not os.environ.get("GPUFLEET_TEST_REAL"):
        pytest.skip("needs the real SGLang: make test-real")
    sys.path.insert(0, str(HERE))
    try:
        import engine
    finally:
        sys.path.remove(str(HERE))
    engine.setup()
    return engine


@pytest.fixture(scope="module")
def real(engine: Any) -> list[dict[str, Any]]:
    return judge(str(engine.folder() / "venv" / "bin" / "python"), engine.environment())


@pytest.fixture(scope="module")
def emulated() -> list[dict[str, Any]]:
    return judge(sys.executable, {"PYTHONPATH": str(EMULATOR)})


def check_expected(answers: Sequence[dict[str, Any]]) -> None:
    taken = [*GOOD, *(line for line, _why in STRICTER)]
    wrong = [(line, answer["problems"]) for line, answer in zip(LINES, answers, strict=True) if answer["accepted"] is not (line in taken)]
    assert not wrong


def test_the_real_parser(real: list[dict[str, Any]]) -> None:
    check_expected(real)
    by_line = {json.dumps(line): answer for line, answer in zip(LINES, real, strict=True)}
    assert by_line['["--tp", "8"]']["abbreviations"] == ["--tp is read as --tp-size"]
    assert "--disable-cuda-graph" in by_line['["--disable-cuda-graph"]']["notes"][0]
    assert "close to it: --attention-backend" in by_line['["--atention-backend", "triton"]']["problems"][0]
    assert "triton" in by_line['["--attention-backend", "magic"]']["problems"][0]


def test_the_emulator_agrees(emulated: list[dict[str, Any]]) -> None:
    check_expected(emulated)


def test_both_name_the_same_flag(real: list[dict[str, Any]], emulated: list[dict[str, Any]]) -> None:
    def names(answer: dict[str, Any]) -> list[str]:
        return [line.partition(":")[0] for line in answer["problems"]]

    differ = [(line, a, b) for line, a, b in zip(LINES, map(names, real), map(names, emulated), strict=True) if a != b]
    assert not differ


@pytest.mark.parametrize("line", [*GOOD, *ENGINE_KNOWS], ids=" ".join)
def test_our_table_takes(line: list[str]) -> None:
    assert engine_flags.check([*MODEL, *line], VERSION) == []


@pytest.mark.parametrize("line", BAD, ids=" ".join)
def test_our_table_refuses(line: list[str]) -> None:
    assert len(engine_flags.check([*line, *MODEL], VERSION)) == 1


@pytest.mark.parametrize(("line", "why"), STRICTER, ids=lambda value: " ".join(value) if isinstance(value, list) else "")
def test_where_our_table_is_stricter(line: list[str], why: str) -> None:
    (problem,) = engine_flags.check([*MODEL, *line], VERSION)
    assert why in problem


def test_the_whole_check_on_the_real_engine(engine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    (tmp_path / "home").mkdir()
    (tmp_path / "temporary").mkdir()
    python = str(engine.folder() / "venv" / "bin" / "python")
    words = [*MODEL, "--tp-size", "8", "--attention-backend", "magic", "--api-key", "topsecret99"]
    result = _engine_parser.check(python, words, engine.environment(), 300, str(tmp_path / "temporary"))
    assert (result["status"], result["accepted"], result["version"]) == ("ok", False, VERSION)
    assert len(result["problems"]) == 1 and "invalid choice: 'magic'" in result["problems"][0] and "topsecret99" not in json.dumps(result)
    assert not list((tmp_path / "home").iterdir()) and not list((tmp_path / "temporary").iterdir())
