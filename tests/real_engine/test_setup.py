# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The set-up of the real engine: named by its content, never taken half-made, one at a time, with errors a person can act on.

What takes minutes, installing and making models, is replaced by something quick; the steps around it are the real ones.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest

SOURCE = Path(__file__).resolve().parent / "engine.py"
# Arguments: engine.py, seconds that the installation takes, what the models' maker runs, the engine's command.
QUICK = """
import importlib.util, sys, time
source, seconds, maker, *words = sys.argv[1:]
spec = importlib.util.spec_from_file_location("real_engine", source)
engine = importlib.util.module_from_spec(spec)
spec.loader.exec_module(engine)

def install(interpreter):
    engine.run([interpreter, "-m", "venv", "--without-pip", engine.folder() / "venv"])
    with open(engine.cache() / "installed", "a") as log:
        log.write("once ")
    time.sleep(float(seconds))

engine.install = install
engine.WARM_UP = "pass"
engine.FREE_GB = 0
engine.models_command = lambda: [str(engine.python()), "-c", maker]
sys.argv = [source, *words]
engine.main()
"""


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("real_engine_setup", SOURCE)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setenv("GPUFLEET_CACHE_DIR", str(tmp_path / "cache"))
    return module


def start(cache: Path, word: str = "setup", seconds: float = 0, maker: str = "pass") -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", QUICK, str(SOURCE), str(seconds), maker, word],
        env={**os.environ, "GPUFLEET_CACHE_DIR": str(cache), "PYTHONDONTWRITEBYTECODE": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} does not appear"
        time.sleep(0.05)


@pytest.fixture
def cache(tmp_path: Path, engine: ModuleType) -> Path:
    try:
        engine.find_python(os.environ["PATH"])
    except engine.SetupError as error:
        pytest.skip(str(error))
    return tmp_path / "cache"


def test_the_folder_changes_with_everything_that_is_installed(engine: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOCK", "MODEL_MAKER"):
        shutil.copy(getattr(engine, name), tmp_path)
        monkeypatch.setattr(engine, name, tmp_path / getattr(engine, name).name)
    shutil.copytree(engine.ADAPTATIONS, tmp_path / "adaptations")
    monkeypatch.setattr(engine, "ADAPTATIONS", tmp_path / "adaptations")
    seen = [engine.folder()]
    assert re.fullmatch(r"real_engine-[0-9a-f]{12}", seen[0].name)
    assert seen[0].parent == tmp_path / "cache"
    assert engine.folder() == seen[0]
    for path in (engine.LOCK, engine.MODEL_MAKER, engine.ADAPTATIONS / "gpufleet_adaptations.py"):
        path.write_text(path.read_text() + "\n")
        seen.append(engine.folder())
    monkeypatch.setattr(engine, "TORCH", "torch==1")
    seen.append(engine.folder())
    assert len(set(seen)) == 5


def test_the_cache_is_where_the_user_wants_it(engine: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GPUFLEET_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", "/elsewhere")
    assert engine.cache() == Path("/elsewhere/gpufleet")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/somebody")
    assert engine.cache() == Path("/home/somebody/.cache/gpufleet")


def test_it_is_made_once_and_needs_no_second_time(cache: Path) -> None:
    first = start(cache)
    folder, said = first.communicate(timeout=60)
    assert first.returncode == 0, said
    assert (Path(folder.strip()) / ".ready").exists()
    second = start(cache)
    assert second.communicate(timeout=60) == (folder, "")
    assert (cache / "installed").read_text() == "once "


def test_one_that_was_killed_half_way_is_not_taken_and_made_anew(cache: Path) -> None:
    child = start(cache, seconds=60)
    wait_for(cache / "installed")
    (folder,) = cache.glob("real_engine-*[0-9a-f]")
    (folder / "half-made").touch()
    child.send_signal(signal.SIGKILL)
    child.communicate()
    assert (folder / "venv" / "bin" / "python").exists()
    again = start(cache)
    assert again.communicate(timeout=60)[0].strip() == str(folder)
    assert (folder / ".ready").exists() and not (folder / "half-made").exists()
    assert (cache / "installed").read_text() == "once once "


def test_a_part_that_fails_leaves_nothing_that_counts(cache: Path) -> None:
    child = start(cache, maker="raise SystemExit('no room for models')")
    output, said = child.communicate(timeout=60)
    assert child.returncode == 1 and output == "" and "the models could not be made: no room for models" in said
    assert not list(cache.glob("*/.ready"))


def test_two_at_once_make_one(cache: Path) -> None:
    first = start(cache, seconds=2)
    wait_for(cache / "installed")
    second = start(cache)
    one, two = first.communicate(timeout=60), second.communicate(timeout=60)
    assert one[0] == two[0] != "" and "another set-up runs" in two[1]
    assert (cache / "installed").read_text() == "once "


def test_clean_takes_all_away_but_not_under_a_running_server(cache: Path) -> None:
    folder = start(cache).communicate(timeout=60)[0].strip()
    older = cache / "real_engine-0123456789ab"
    older.mkdir()
    shutil.copy("/bin/sleep", f"{folder}/server")
    with subprocess.Popen([f"{folder}/server", "60"]) as server:
        try:
            child = start(cache, "clean")
            assert f"processes still run from there: {server.pid}" in child.communicate(timeout=60)[1] and child.returncode == 1
            assert older.exists()
        finally:
            server.kill()
    assert start(cache, "clean").communicate(timeout=60)[1].count("real_engine-") == 2
    assert not list(cache.glob("real_engine-*"))


def test_what_spoils_byte_code_is_not_passed_on(engine: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    monkeypatch.setenv("PIP_INDEX_URL", "https://pip.example.com/simple")
    passed = engine.clean_environment()
    assert not {"PYTHONDONTWRITEBYTECODE", "PYTHONPATH"} & set(passed)
    assert passed["UV_DEFAULT_INDEX"] == "https://pip.example.com/simple"
    words = [sys.executable, "-c", "import sys; print(sys.dont_write_bytecode)"]
    server = subprocess.run(words, env={**os.environ, **engine.environment()}, check=True, capture_output=True, text=True)
    assert server.stdout == "False\n"


@pytest.mark.parametrize(
    ("system", "machine", "libc", "message"),
    [
        ("darwin", "arm64", ("", ""), "runs on Linux on x86_64 or aarch64, this is darwin on arm64"),
        ("linux", "ppc64le", ("glibc", "2.39"), "this is linux on ppc64le"),
        ("linux", "x86_64", ("glibc", "2.31"), "needs glibc 2.34 or newer, this is glibc 2.31"),
        ("linux", "x86_64", ("", ""), "this is another C library"),
    ],
)
def test_a_platform_without_a_package_is_refused(
    engine: ModuleType, system: str, machine: str, libc: tuple[str, str], message: str
) -> None:
    with pytest.raises(engine.SetupError, match=re.escape(message)):
        engine.check_platform(system, machine, libc)


def test_platforms_with_a_package(engine: ModuleType) -> None:
    engine.check_platform("linux", "x86_64", ("glibc", "2.36"))
    engine.check_platform("linux", "aarch64", ("glibc", "2.34"))


def test_too_little_room_is_said_before_anything_is_downloaded(engine: ModuleType) -> None:
    with pytest.raises(engine.SetupError, match=r"needs 4 GB, .*/cache has 1\.5 GB free: make room, or .*GPUFLEET_CACHE_DIR"):
        engine.check_space(1_500_000_000)
    engine.check_space(5_000_000_000)


def test_python_is_looked_for_and_missed(engine: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    monkeypatch.setattr(sys, "executable", "/nosuch/python")
    with pytest.raises(engine.SetupError, match=r"needs Python 3\.11, and there is none on the path"):
        engine.find_python(str(tmp_path))
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    monkeypatch.setattr(engine, "PYTHON", sys.version_info[:2])
    (tmp_path / "python3").symlink_to(os.path.realpath(f"/proc/{os.getpid()}/exe"))
    assert engine.find_python(str(tmp_path)).endswith(f"/python{version}")


def test_the_lock_has_what_is_installed_first_with_its_hashes(engine: ModuleType) -> None:
    lock = engine.LOCK.read_text()
    entry = engine.pinned("uv", lock)
    assert entry.startswith("uv==") and entry.count("--hash=sha256:") > 2 and entry.count("==") == 1
    assert re.search(r"^sglang==0\.5\.23 ", lock, re.MULTILINE)
    # It is installed on its own, and nothing of its kind for GPUs comes along.
    assert not re.search(r"^(torch|(nvidia-cu|cuda|flashinfer|sgl-|sglang-kernel)[a-z0-9-]*)==", lock, re.MULTILINE)
    assert not re.search(r"https?://", re.sub(r"^ *#.*", "", lock, flags=re.MULTILINE))
    with pytest.raises(engine.SetupError, match="has no sgl-kernel: make it anew with make lock"):
        engine.pinned("sgl-kernel", lock)


def test_the_command_of_a_server(engine: ModuleType) -> None:
    words = engine.command("tiny-llama", 31599, "--tp", "2")
    assert words[0] == str(engine.folder() / "venv/bin/python") and words[-2:] == ["--tp", "2"]
    assert words[words.index("--model-path") + 1] == str(engine.folder() / "models/tiny-llama")
    assert words[words.index("--port") + 1] == "31599"
    assert "/some/where" in engine.command("/some/where", 31599)
    assert not engine.ready()


HANDLERS = """
class AttentionBackendRegistry:
    known = {}
    @classmethod
    def register(cls, name, handler): cls.known[name] = handler

def _dispatch_mla_subtype(attn, forward_batch): return "absorbed"
"""


def test_adaptations_change_no_file_and_nothing_else(engine: ModuleType, tmp_path: Path) -> None:
    package = tmp_path / "sglang/srt/models/deepseek_common"
    package.mkdir(parents=True)
    (package / "attention_backend_handler.py").write_text(HANDLERS)
    script = """
import gpufleet_adaptations
from sgl_kernel.moe import topk_softmax
from sgl_kernel import scalar_types
from sglang.srt.models.deepseek_common.attention_backend_handler import AttentionBackendRegistry as Registry
print(Registry.known["torch_native"](None, None), scalar_types.uint4)
for broken in (lambda: topk_softmax(1), lambda: scalar_types.uint4(), lambda: __import__("sgl_kernels")):
    try:
        broken()
    except Exception as error:
        print(type(error).__name__, error)
"""
    path = f"{engine.ADAPTATIONS}:{tmp_path}"
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"},
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.stderr == ""
    first, *rest = done.stdout.splitlines()
    assert first.startswith("absorbed <gpufleet_adaptations.Missing object")
    assert rest == [
        "NotImplementedError sgl_kernel.moe.topk_softmax needs a GPU",
        "NotImplementedError sgl_kernel.scalar_types.uint4 needs a GPU",
        "ModuleNotFoundError No module named 'sgl_kernels'",
    ]
    assert (package / "attention_backend_handler.py").read_text() == HANDLERS
