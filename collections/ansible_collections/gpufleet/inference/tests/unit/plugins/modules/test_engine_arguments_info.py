# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The engine's parser is asked in a real child; only the engine is ours, and it misbehaves in every way."""

from __future__ import annotations

import json
import os
import socket
import sys
import time

import pytest
from ansible_collections.gpufleet.inference.plugins.module_utils import _engine_program
from ansible_collections.gpufleet.inference.plugins.modules import engine_arguments_info

PARSER = """
import argparse, json, logging, os, sys
class ServerArgs:
    @staticmethod
    def add_cli_args(parser):
        parser.add_argument("--model-path", "--model", required=True)
        parser.add_argument("--tp-size", type=int)
        parser.add_argument("--port", type=int)
        parser.add_argument("--api-key")
        parser.add_argument("--attention-backend", choices=["triton", "flashinfer"])
        parser.add_argument("--pp-size", type=int)
        parser.add_argument("--pp-max", type=int)
        parser.add_argument("--sizes", type=int, nargs="+")
        parser.add_argument("--metrics", action="store_true")
        parser.add_argument("--extra", type=json.loads)
        parser.add_argument("--config")
        parser.add_argument("--broken", type=lambda value: sys.exit(3) if value == "end" else {}[value])
        parser.add_argument("--old", action=Old, nargs=0)
class Old(argparse.Action):
    def __call__(self, parser, namespace, values, option_string=None):
        logging.getLogger("sglang").warning("\\033[1;33m'--old' is deprecated.\\033[0m")
"""
MODEL = ["--model-path", "/m"]


@pytest.fixture
def ask(run_module, tmp_path):
    """Ask an engine that runs ``prelude`` when it is imported; the paths that it needs are in its environment."""
    packages = tmp_path / "packages"

    def run(arguments, prelude="", timeout=30, environment=None, check=False, parser=PARSER):
        (packages / "sglang" / "srt").mkdir(parents=True, exist_ok=True)
        (packages / "sglang" / "__init__.py").write_text("__version__ = '0.5.23'\n")
        (packages / "sglang" / "srt" / "__init__.py").write_text("")
        (packages / "sglang" / "srt" / "server_args.py").write_text(prelude + "\n" + parser)
        variables = {"PYTHONPATH": str(packages), "NOTES": str(tmp_path / "notes"), **(environment or {})}
        result = run_module(
            engine_arguments_info, check=check, python=sys.executable, arguments=arguments, environment=variables, timeout=timeout
        )
        assert result["changed"] is False and not result.get("failed")
        return result

    run.notes = tmp_path / "notes"
    run.packages = packages
    return run


@pytest.fixture
def judge():
    """The same without a child."""
    names = {}
    exec(PARSER, names)
    parser = _engine_program.Parser(prog="sglang serve")
    names["ServerArgs"].add_cli_args(parser)
    return lambda arguments: _engine_program.judge(parser, arguments)


def gone(pid, seconds=5.0):
    """Whether a process ends; its zombie may stay under a PID 1 that does not reap."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            with open(f"/proc/{pid}/stat") as file:
                if file.read().rpartition(")")[2].split()[0] in "ZX":
                    return True
        except OSError:
            return True
        time.sleep(0.05)
    return False


def test_a_good_command(ask):
    result = ask([*MODEL, "--tp-size", "8", "--sizes", "1", "2", "--extra", '{"a": 1}', "--metrics"], check=True)
    assert (result["status"], result["accepted"], result["problems"]) == ("ok", True, [])
    assert (result["reason"], result["stage"], result["version"]) == (None, None, "0.5.23") and result["seconds"] > 0


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--atention-backend", "triton"], "unrecognized arguments: --atention-backend (close to it: --attention-backend)"),
        (["--attention-backend", "magic"], "argument --attention-backend: invalid choice: 'magic' (choose from "),
        (["--tp-size", "eight"], "argument --tp-size: invalid int value: 'eight'"),
        (["--tp-size"], "argument --tp-size: expected one argument"),
        (["--sizes"], "argument --sizes: expected at least one argument"),
        (["--pp", "1"], "ambiguous option: --pp could match --pp-size, --pp-max"),
        (["--metrics", "yes"], "unrecognized arguments: yes (after --metrics)"),
        (["--metrics=yes"], "argument --metrics: ignored explicit argument 'yes'"),
        (["--extra", "{"], "argument --extra: invalid loads value: '{'"),
        (["--tp-size", "8", "8"], "unrecognized arguments: 8 (after --tp-size)"),
        (["-h"], "argument -h: ends the engine with exit status 0 before it serves"),
        (["--nothing-like-it", "1"], "unrecognized arguments: --nothing-like-it"),
    ],
)
def test_what_the_parser_refuses(judge, arguments, problem):
    result = judge([*MODEL, *arguments])
    (line,) = result["problems"]
    assert result["accepted"] is False and line.startswith(problem)


def test_all_problems_at_once(judge):
    result = judge(["stray", "--tp-size", "eight", "--port", "1", "--nope", "--attention-backend", "magic"])
    assert [line.split(" (")[0] for line in result["problems"]] == [
        "unrecognized arguments: stray",
        "argument --tp-size: invalid int value: 'eight'",
        "unrecognized arguments: --nope",
        "argument --attention-backend: invalid choice: 'magic'",
        "the following arguments are required: --model-path/--model",
    ]


def test_abbreviations_are_warned_about_and_deprecated_flags_noted(ask, monkeypatch):
    warned = []
    monkeypatch.setattr(engine_arguments_info.AnsibleModule, "warn", lambda _self, text: warned.append(text))
    result = ask(["--model", "/m", "--tp=8", "--old"])
    assert result["accepted"] is True
    assert result["abbreviations"] == ["--tp is read as --tp-size"] and result["notes"] == ["'--old' is deprecated."]
    assert len(warned) == 1 and "--tp is read as --tp-size" in warned[0]


def test_what_the_parser_alone_takes(judge):
    assert judge([*MODEL, "--port", "99999", "--tp-size", "-5"])["accepted"] is True


def test_a_type_that_raises_what_it_likes(judge):
    result = judge([*MODEL, "--broken", "x"])
    assert result["accepted"] is False and result["problems"] == ["KeyError: 'x'"]
    assert judge([*MODEL, "--broken", "end"])["problems"] == ["SystemExit: 3"]


def test_a_config_file_is_merged_by_the_engine(ask, tmp_path):
    merger = """
class ConfigArgumentMerger:
    def __init__(self, parser): self.parser = parser
    def merge_config_with_args(self, words):
        at = words.index("--config")
        return open(words[at + 1]).read().split() + words[:at] + words[at + 2:]
"""
    ask(MODEL)
    (ask.packages / "sglang" / "srt" / "server_args_config_parser.py").write_text(merger)
    (tmp_path / "good.yaml").write_text("--model-path /m --tp-size 4")
    (tmp_path / "bad.yaml").write_text("--model-path /m --tp-sise 4")
    assert ask(["--config", str(tmp_path / "good.yaml"), "--port", "1"])["accepted"] is True
    assert "--tp-sise (close to it: --tp-size" in ask(["--config", str(tmp_path / "bad.yaml")])["problems"][0]
    assert "FileNotFoundError" in ask(["--config", str(tmp_path / "none.yaml")])["problems"][0]


def test_plugins_are_loaded_as_the_entry_points_do(ask):
    ask(MODEL)
    (ask.packages / "sglang" / "srt" / "plugins.py").write_text(
        "def load_plugins():\n"
        "    from sglang.srt.server_args import ServerArgs\n"
        "    real = ServerArgs.add_cli_args\n"
        "    ServerArgs.add_cli_args = staticmethod(lambda p: (real(p), p.add_argument('--by-plugin')))\n"
    )
    assert ask([*MODEL, "--by-plugin", "1"])["accepted"] is True


@pytest.mark.parametrize(
    ("prelude", "reason"),
    [
        ("import no_such_library", "the engine can not be imported: ModuleNotFoundError: No module named 'no_such_library'"),
        ("raise SystemExit(0)", "the engine can not be imported: SystemExit: 0"),
        ("import os; os._exit(0)", "the engine ended while it was imported (exit status 0)"),
        ("import os, sys; print('last words', flush=True); os._exit(3)", "(exit status 3), its last line: last words"),
        ("import os; os.abort()", "the engine ended while it was imported (killed by signal 6)"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "(killed by signal 9)"),
    ],
)
def test_an_engine_that_does_not_import(ask, prelude, reason):
    result = ask(MODEL, prelude)
    assert (result["status"], result["stage"], result["accepted"]) == ("unavailable", "import", None) and reason in result["reason"]


def test_an_engine_without_the_parser_that_we_know(ask):
    result = ask(MODEL, parser="class ServerArgs: pass")
    assert result["status"] == "unavailable" and "AttributeError" in result["reason"] and "add_cli_args" in result["reason"]


def test_no_interpreter_and_no_engine(run_module, tmp_path):
    result = run_module(engine_arguments_info, python=str(tmp_path / "python"), arguments=MODEL)
    assert (result["stage"], result["accepted"]) == ("interpreter", None) and "No such file" in result["reason"]
    (tmp_path / "python").write_text("")
    assert "Permission denied" in run_module(engine_arguments_info, python=str(tmp_path / "python"), arguments=MODEL)["reason"]
    result = run_module(engine_arguments_info, python=sys.executable, arguments=MODEL, environment={"PYTHONPATH": str(tmp_path)})
    assert result["stage"] == "import" and "No module named 'sglang'" in result["reason"]


def test_megabytes_at_import_are_read_past(ask):
    noise = "import sys\nfor _ in range(80): sys.stdout.write('x' * 65535 + '\\n'); sys.stderr.write('{\"accepted\": true}\\n')"
    result = ask([*MODEL, "--tp-size", "eight"], noise)
    assert result["accepted"] is False and len(json.dumps(result)) < 5000


def test_output_without_end_is_ended(ask):
    result = ask(MODEL, "while True: print('x' * 65536)")
    assert result["status"] == "unavailable" and "printed more than 16 MiB" in result["reason"] and result["seconds"] < 25


HANG = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
sleep = [sys.executable, "-c", "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(120)"]
near = subprocess.Popen(sleep)
far = subprocess.Popen(sleep, start_new_session=True)
bare = subprocess.Popen(sleep, start_new_session=True, env={}, preexec_fn=None)
with open(os.environ["NOTES"] + ".part", "w") as file: file.write(" ".join(map(str, (os.getpid(), near.pid, far.pid, bare.pid))))
os.rename(os.environ["NOTES"] + ".part", os.environ["NOTES"])
"""


def test_an_engine_that_hangs_is_ended_with_all_that_it_started(ask):
    result = ask(MODEL, HANG + "time.sleep(120)", timeout=3)
    assert (result["status"], result["stage"], result["accepted"]) == ("unavailable", "timeout", None)
    assert "no answer within" in result["reason"] and 3 <= result["seconds"] < 15
    pids = ask.notes.read_text().split()
    assert len(pids) == 4 and all(gone(pid) for pid in pids)


def test_what_an_import_leaves_behind_is_ended_too(ask):
    assert ask(MODEL, HANG)["accepted"] is True
    assert all(gone(pid) for pid in ask.notes.read_text().split())


def test_modules_in_the_working_directory_shadow_nothing(ask, tmp_path, monkeypatch):
    here = tmp_path / "here"
    (here / "sglang" / "srt").mkdir(parents=True)
    for name in ("json.py", "argparse.py", "resource.py", "program.py", "sglang/__init__.py", "sglang/srt/server_args.py"):
        (here / name).write_text("raise RuntimeError('shadowed')")
    monkeypatch.chdir(here)
    assert ask(MODEL)["accepted"] is True


LOOK = """
import json, os, resource, tempfile
home = os.path.expanduser("~")
os.makedirs(home + "/.cache/engine"); open(home + "/.cache/engine/file", "w").close(); tempfile.NamedTemporaryFile(delete=False).close()
seen = {"cmdline": open("/proc/self/cmdline").read(), "home": home, "cwd": os.getcwd(), "tmp": tempfile.gettempdir(),
        "core": resource.getrlimit(resource.RLIMIT_CORE)[0], "environ": dict(os.environ), "argv": __import__("sys").argv}
open(os.environ["NOTES"], "w").write(json.dumps(seen))
"""


def test_the_child_sees_no_gpu_and_leaves_nothing(ask, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONSTARTUP", "/nowhere")
    result = ask([*MODEL, "--api-key", "topsecret99"], LOOK, environment={"TRITON_CACHE_DIR": str(tmp_path / "cache"), "NCCL_PROTO": "LL"})
    seen = json.loads(ask.notes.read_text())
    assert result["accepted"] is True and "topsecret99" not in seen["cmdline"] and "sglang" not in os.path.basename(seen["cmdline"])
    assert seen["home"] == seen["cwd"] == seen["tmp"] and not os.path.exists(seen["home"]) and seen["core"] == 0
    environ = seen["environ"]
    assert (environ["CUDA_VISIBLE_DEVICES"], environ["HF_HUB_OFFLINE"], environ["NCCL_PROTO"]) == ("", "1", "LL")
    assert "TRITON_CACHE_DIR" not in environ and "PYTHONSTARTUP" not in environ
    assert not list(ask.packages.rglob("__pycache__"))


def test_the_child_has_no_network(ask):
    try:
        pid = os.fork()
        if pid == 0:
            import ctypes

            os._exit(ctypes.CDLL(None).unshare(0x40000000) & 1)
        if os.waitpid(pid, 0)[1]:
            pytest.skip("only root may take the network away")
    except OSError as error:
        pytest.skip(str(error))
    with socket.create_server(("127.0.0.1", 0)) as door:
        connect = f"import socket; socket.create_connection(('127.0.0.1', {door.getsockname()[1]}), 2)"
        result = ask(MODEL, connect)
    assert result["status"] == "unavailable" and "Network is unreachable" in result["reason"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["--api-key", "topsecret99", "topsecret98"],
        ["--api-kye", "topsecret99"],
        ["--api-kye=topsecret99"],
        ["--api-key=topsecret99", "--tp-size", "topsecret99"],
        ["--attention-backend", "topsecret99", "--api-key", "topsecret99"],
    ],
)
def test_secrets_stay_on_the_host(ask, arguments):
    result = ask([*MODEL, *arguments])
    assert result["accepted"] is False
    told = {name: value for name, value in result.items() if name != "invocation"}
    assert "topsecret9" not in json.dumps(told)
    shown = ask(
        [*MODEL, *arguments[-2:]],
        environment={"HF_TOKEN": "hf_abcdefghij0123456789"},
        prelude="raise ValueError('hf_abcdefghij0123456789')",
    )
    assert "abcdefghij" not in json.dumps(shown)


def test_a_key_is_hidden_in_the_invocation_too(ask):
    result = ask([*MODEL, "--api-key", "topsecret99"])
    assert "topsecret99" not in json.dumps(result)


def test_a_timeout_that_is_none(run_module):
    result = run_module(engine_arguments_info, python=sys.executable, arguments=MODEL, timeout=0)
    assert result["failed"] and "timeout" in result["msg"]
