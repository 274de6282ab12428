# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The real SGLang on a machine without GPUs: set up once for all clones, in a folder of the user's cache.

The folder's name holds a hash of everything that goes into it. It counts only with the mark that is written last.
A CPU build of torch is taken where pip finds one; TORCH_INDEX_URL names a package index of such builds.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HERE = ROOT / "tests" / "real_engine"
LOCK = ROOT / "requirements" / "real_engine.txt"
ADAPTATIONS = HERE / "adaptations"
MODEL_MAKER = HERE / "models.py"
TORCH = "torch==2.13.0"
MODELS = ("tiny-llama", "tiny-deepseek-v3", "tiny-kimi-k2")
PYTHON = (3, 11)
OLDEST_GLIBC = (2, 34)  # of the engine's wheel
FREE_GB = 4
# Imported once at set-up, so that no first start spends its time on byte code.
WARM_UP = "import sglang.launch_server, sglang.srt.entrypoints.http_server, sglang.srt.managers.scheduler, sglang.srt.models.deepseek_v2"


class SetupError(Exception):
    """The engine can not be set up. The text is for the person who asked for it."""


def cache() -> Path:
    """Where big things are kept between clones."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("GPUFLEET_CACHE_DIR") or Path(base) / "gpufleet").resolve()


def key() -> str:
    """Changes with everything that is installed."""
    digest = hashlib.sha256(TORCH.encode())
    for path in (LOCK, MODEL_MAKER, *sorted(p for p in ADAPTATIONS.iterdir() if p.is_file())):
        digest.update(f"\0{path.name}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def folder() -> Path:
    """The engine's folder, whether it is there or not: venv, models."""
    return cache() / f"real_engine-{key()}"


def ready() -> bool:
    """Whether the folder is complete."""
    return (folder() / ".ready").exists() and python().exists()


def python() -> Path:
    """The interpreter that has the engine."""
    return folder() / "venv" / "bin" / "python"


def environment() -> dict[str, str]:
    """What a server needs beside the usual environment to run on a CPU."""
    return {
        "HF_HUB_OFFLINE": "1",
        "SGLANG_USE_CPU_ENGINE": "1",
        # There may be no C++ compiler.
        "TORCH_COMPILE_DISABLE": "1",
        # Small matrices lose time with every further thread.
        "OMP_NUM_THREADS": "1",
        # Set, it makes every start compile the engine anew: minutes.
        "PYTHONDONTWRITEBYTECODE": "",
        "PATH": f"{python().parent}:{os.environ.get('PATH', os.defpath)}",
    }


def command(model: str, port: int, *more: str) -> list[str]:
    """Command line of a server on the loopback address; `model` is one of MODELS or a path, `more` goes to its end."""
    path = folder() / "models" / model if model in MODELS else Path(model)
    words = [str(python()), "-m", "sglang.launch_server", "--model-path", str(path), "--host", "127.0.0.1", "--port", str(port)]
    words += ["--device", "cpu", "--attention-backend", "torch_native"]
    return [*words, "--max-total-tokens", "4096", "--mem-fraction-static", "0.3", *more]


def setup() -> Path:
    """Install the engine and make its models, unless that was done; returns the folder. Raises SetupError."""
    if ready():
        return folder()
    check_platform(sys.platform, platform.machine(), platform.libc_ver())
    interpreter = find_python(os.environ.get("PATH", os.defpath))
    with one_at_a_time():
        if ready():
            return folder()
        check_space(shutil.disk_usage(cache()).free)
        began = time.monotonic()
        shutil.rmtree(folder(), ignore_errors=True)
        say(f"installing SGLang for CPUs into {folder()}, once, a few minutes")
        install(interpreter)
        say("making the models and compiling the engine's Python")
        with subprocess.Popen(models_command(), env=clean_environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as maker:
            try:
                run([python(), "-c", WARM_UP], environment())
            finally:
                output = maker.communicate()[0]
        if maker.returncode:
            raise SetupError(f"the models could not be made: {output.decode(errors='replace')[-2000:]}")
        (folder() / ".ready").touch()
        say(f"ready after {time.monotonic() - began:.0f} s")
    return folder()


def clean() -> list[Path]:
    """Remove every engine of the cache, also those of older clones; returns what was removed. Raises SetupError when one runs."""
    if not cache().is_dir():
        return []
    with one_at_a_time():
        found = sorted(cache().glob("real_engine-*"))
        running = users_of(found)
        if running:
            raise SetupError(f"processes still run from there: {', '.join(map(str, running))}")
        for path in found:
            shutil.rmtree(path)
    return found


# ---- steps


def install(interpreter: str) -> None:
    try:
        run([interpreter, "-m", "venv", folder() / "venv"])
    except SetupError as error:
        raise SetupError(f"{interpreter} can not make a virtual environment (Debian and Ubuntu: python3-venv): {error}") from None
    tool = folder() / "uv.txt"
    tool.write_text(pinned("uv", LOCK.read_text()))
    pip = [str(python()), "-m", "pip", "--disable-pip-version-check", "--quiet", "install"]
    run([*pip, "--require-hashes", "-r", str(tool)])
    uv = [str(python().with_name("uv")), "pip", "install", "--quiet", "--python", str(python())]
    run([*uv, "--require-hashes", "--no-deps", "-r", str(LOCK)])
    index = os.environ.get("TORCH_INDEX_URL")
    run([*pip, TORCH, *(["--index-url", index] if index else [])])
    (packages,) = (folder() / "venv" / "lib").glob("python*/site-packages")
    for path in ADAPTATIONS.iterdir():
        if path.is_file():
            shutil.copy(path, packages)


def models_command() -> list[str]:
    return [str(python()), str(MODEL_MAKER), str(folder() / "models")]


def pinned(name: str, lock: str) -> str:
    """The entry of one package in a lock, with its hashes."""
    found = re.search(rf"^{name}==.*\n(?:[ #].*\n)*", lock, re.MULTILINE)
    if not found:
        raise SetupError(f"{LOCK} has no {name}: make it anew with make lock")
    return found[0]


def run(words: Sequence[str | Path], more: dict[str, str] | None = None) -> None:
    """Run a command quietly; raises SetupError with the end of what it said."""
    argv = [str(word) for word in words]
    done = subprocess.run(
        argv,
        check=False,
        env={**clean_environment(), **(more or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode:
        raise SetupError(f"{' '.join(argv)} ended with {done.returncode}:\n{done.stdout[-3000:]}")


def clean_environment() -> dict[str, str]:
    """Ours without what would spoil the installation."""
    unwanted = ("PYTHONDONTWRITEBYTECODE", "PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV")
    found = {name: value for name, value in os.environ.items() if name not in unwanted}
    # uv has an index setting of its own.
    if "PIP_INDEX_URL" in found:
        found.setdefault("UV_DEFAULT_INDEX", found["PIP_INDEX_URL"])
    return found


# ---- what must be so


def check_platform(system: str, machine: str, libc: tuple[str, str]) -> None:
    """Raises SetupError on a machine for which the engine has no package."""
    name, version = libc
    numbers = tuple(int(number) for number in re.findall(r"\d+", version)[:2])
    if system != "linux" or machine not in ("x86_64", "aarch64"):
        raise SetupError(f"the real engine runs on Linux on x86_64 or aarch64, this is {system} on {machine}")
    if name != "glibc" or numbers < OLDEST_GLIBC:
        oldest = ".".join(map(str, OLDEST_GLIBC))
        raise SetupError(f"SGLang's package needs glibc {oldest} or newer, this is {name or 'another C library'} {version}")


def check_space(free: int) -> None:
    """Raises SetupError when the cache has too little room."""
    if free < FREE_GB * 1_000_000_000:
        where = f"{cache()} has {free / 1e9:.1f} GB free"
        raise SetupError(f"the real engine needs {FREE_GB} GB, {where}: make room, or name another place with GPUFLEET_CACHE_DIR=")


def find_python(path: str) -> str:
    """An interpreter of the version that the lock is for: the running one, one on the path, pyenv's. Raises SetupError."""
    wanted = ".".join(map(str, PYTHON))
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    candidates: Iterable[str | None] = (
        sys.executable,
        shutil.which(f"python{wanted}", path=path),
        shutil.which("python3", path=path),
        *sorted(map(str, pyenv.glob(f"{wanted}.*/bin/python3"))),
    )
    for candidate in filter(None, candidates):
        words = [candidate, "-c", "import sys; print(sys.base_prefix + '/bin/python%d.%d' % sys.version_info[:2])"]
        try:
            seen = subprocess.run(words, check=False, capture_output=True, text=True, timeout=30).stdout.strip()
        except (OSError, subprocess.TimeoutExpired):
            continue
        if seen.endswith(f"/python{wanted}") and os.access(seen, os.X_OK):
            return seen
    raise SetupError(f"the real engine needs Python {wanted}, and there is none on the path: install it (Debian 12 has it as python3)")


def users_of(folders: Sequence[Path]) -> list[int]:
    """Processes that run from one of the folders."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                mapped = (entry / "maps").read_text(errors="replace")
                if any(f"{path}/" in mapped for path in folders):
                    found.append(int(entry.name))
    return found


@contextlib.contextmanager
def one_at_a_time() -> Iterator[None]:
    """Keeps two set-ups apart, those of two clones also."""
    cache().mkdir(parents=True, exist_ok=True)
    with open(cache() / "real_engine.lock", "w") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another set-up runs, waiting for it")
            fcntl.flock(held, fcntl.LOCK_EX)
        yield


def say(message: str) -> None:
    print(f"real engine: {message}", file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("what", choices=["setup", "clean", "folder"])
    what = parser.parse_args().what
    try:
        if what == "setup":
            print(setup())
        elif what == "folder":
            print(folder())
        else:
            say(f"removed: {', '.join(map(str, clean())) or 'nothing, there was none'}")
    except SetupError as error:
        sys.exit(f"real engine: {error}")


if __name__ == "__main__":
    main()
