# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Bring the embedded lab up and down: N hosts in folders, each with its own supervisord, GPUs, port and state.

Everything lies under .lab in the clone (GPUFLEET_LAB_DIR names another folder), so that removing it removes the lab.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import processes

ROOT = Path(__file__).resolve().parents[2]
EMULATOR = ROOT / "tests" / "emulator"
LAB = Path(os.environ.get("GPUFLEET_LAB_DIR") or ROOT / ".lab").resolve()
PIP = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
MODEL = "kimi-k2.5"
SOCKET_LIMIT = 90  # sun_path holds 108 bytes and supervisord first binds a longer temporary name

SUPERVISORD_CONF = """\
[unix_http_server]
file={socket}
chmod=0700

[supervisord]
identifier={name}
directory={home}
pidfile={home}/run/supervisord.pid
logfile={home}/run/supervisord.log
logfile_maxbytes=5MB
logfile_backups=1
childlogdir={home}/log

[rpcinterface:supervisor]
supervisor.rpcinterface_factory=supervisor.rpcinterface:make_main_rpcinterface

[supervisorctl]
serverurl=unix://{socket}

[include]
files=conf.d/*.conf
"""

NVIDIA_SMI = """\
#!/bin/sh
SGLANG_EMULATOR_MACHINE='{machine}' exec '{python}' -m sglang.emulator.nvidia_smi "$@"
"""


def die(message: str) -> NoReturn:
    sys.exit(f"lab: {message}")


def say(message: str) -> None:
    print(f"lab: {message}", flush=True)


def run(*argv: str | Path, **options: Any) -> None:
    """Run a command; its output is shown only when it fails."""
    words = [str(word) for word in argv]
    done = subprocess.run(
        words, check=False, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options
    )
    if done.returncode:
        die(f"{' '.join(words)} ended with {done.returncode}:\n{done.stdout}")


def read_settings() -> dict[str, Any] | None:
    """What `up` wrote, or None without a lab."""
    try:
        settings: dict[str, Any] = json.loads((LAB / "lab.json").read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return None
    return settings


def write(path: Path, text: str, mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".new")
    temporary.write_text(text)
    temporary.chmod(mode)
    temporary.replace(path)


@contextlib.contextmanager
def one_at_a_time() -> Iterator[None]:
    """Keep two lab commands apart. The lock is on this file, so it leaves nothing behind."""
    with open(__file__, "rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield


# ---- up


def host_names(count: int) -> list[str]:
    return [f"gpu{n:02d}" for n in range(1, count + 1)]


def short_dir() -> Path:
    """A private folder of this lab under /tmp, for sockets only."""
    return Path("/tmp") / f"gpufleet-lab-{os.getuid()}-{hashlib.sha256(os.fsencode(LAB)).hexdigest()[:12]}"


def socket_path(name: str) -> Path:
    """The host's supervisord socket: in the lab, or in the short folder when its path there is too long for a socket."""
    path = LAB / name / "run" / "supervisor.sock"
    if len(os.fsencode(path)) <= SOCKET_LIMIT:
        return path
    folder = short_dir()
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.is_symlink() or folder.stat().st_uid != os.getuid():
        die(f"{folder} belongs to somebody else")
    return folder / f"{name}.sock"


def port_taken(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("0.0.0.0", port))
        except OSError:
            return True
    return False


def source_hash(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts and not any(p.endswith(".egg-info") for p in path.parts):
            digest.update(f"{path.relative_to(folder)}\0{path.stat().st_size}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def build_wheel() -> Path:
    """Build the emulator's wheel, once per content of its source, and put what it needs beside it."""
    wheels = LAB / "wheels"
    stamp = wheels / f"{source_hash(EMULATOR)}.stamp"
    if stamp.exists():
        return wheels / stamp.read_text()
    shutil.rmtree(wheels, ignore_errors=True)
    wheels.mkdir(parents=True)
    source = LAB / "build"
    shutil.rmtree(source, ignore_errors=True)
    shutil.copytree(EMULATOR, source, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info", "build", "dist"))
    run(*PIP, "wheel", "--no-deps", "--no-index", "--no-build-isolation", "--wheel-dir", wheels, source)
    shutil.rmtree(source)
    run(*PIP, "download", "--no-deps", "--require-hashes", "--dest", wheels, "-r", ROOT / "requirements" / "emulator.txt")
    (wheel,) = wheels.glob("sglang-*.whl")
    write(stamp, wheel.name)
    return wheel


def make_tools(wheel: Path) -> Path:
    """A venv with the emulator for what the lab itself runs (nvidia-smi, the model maker); returns its interpreter."""
    tools = LAB / "tools"
    python = tools / "bin" / "python"
    stamp = tools / "wheel"
    content = source_hash(wheel.parent)
    if stamp.exists() and stamp.read_text() == content:
        return python
    shutil.rmtree(tools, ignore_errors=True)
    run(sys.executable, "-m", "venv", "--without-pip", tools)
    run(*PIP, "--python", python, "install", "--no-index", "--find-links", wheel.parent, wheel)
    write(stamp, content)
    return python


def make_model(tools: Path) -> None:
    model = LAB / "models" / MODEL
    if model.exists():
        return
    unfinished = model.with_name(model.name + ".new")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.parent.mkdir(exist_ok=True)
    run(tools, "-m", "sglang.emulator", "make-model", unfinished, cwd=LAB)
    unfinished.rename(model)


def make_host(name: str, tools: Path) -> None:
    home = LAB / name
    for folder in ("machine", "state", "home", "run", "log", "bin", "conf.d"):
        (home / folder).mkdir(parents=True, exist_ok=True)
    (home / "state").chmod(0o700)
    (home / "kernel.log").touch()
    write(home / "bin" / "nvidia-smi", NVIDIA_SMI.format(machine=home / "machine", python=tools), 0o755)
    # Supervisor expands %(name)s in its files.
    values = {"socket": socket_path(name), "name": name, "home": home}
    write(home / "supervisord.conf", SUPERVISORD_CONF.format(**{k: str(v).replace("%", "%%") for k, v in values.items()}))
    if not (home / "machine" / "machine.json").exists():
        run(tools, "-m", "sglang.emulator", "make-machine", home / "machine", cwd=home)


def supervisord_pid(name: str) -> int | None:
    """The process id of the host's live supervisord."""
    try:
        pid = int((LAB / name / "run" / "supervisord.pid").read_text())
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (OSError, ValueError):
        return None
    return pid if os.fsencode(LAB / name / "supervisord.conf") in words else None


def start_supervisord(name: str) -> None:
    home = LAB / name
    socket_path(name).unlink(missing_ok=True)
    # Nothing of the caller's environment reaches the services.
    environment = {
        "HOME": str(home / "home"),
        "LANG": "C.UTF-8",
        "PATH": f"{home / 'bin'}:/usr/local/bin:/usr/bin:/bin",
    }
    run(sys.executable, "-W", "ignore", "-m", "supervisor.supervisord", "-c", home / "supervisord.conf", cwd=home, env=environment)
    deadline = time.monotonic() + 20
    while not (supervisord_pid(name) and socket_path(name).exists()):
        if time.monotonic() > deadline:
            die(f"{name}: supervisord did not start, see {home / 'run' / 'supervisord.log'}")
        time.sleep(0.05)


def refuse_what_can_not_work(names: list[str], args: argparse.Namespace, settings: dict[str, Any] | None) -> None:
    if not EMULATOR.joinpath("pyproject.toml").is_file():
        die(f"{EMULATOR} is missing: the clone is incomplete")
    if any(letter.isspace() for letter in str(LAB)):
        die(f"the path {str(LAB)!r} has a space in it, which pip's options and supervisor's files can not express: move the clone")
    if settings and (settings["hosts"], settings["base_port"]) != (args.hosts, args.base_port):
        die(
            f"a lab with {settings['hosts']} hosts from port {settings['base_port']} is up already"
            f" and {args.hosts} hosts from port {args.base_port} were asked for: run make lab-down first"
        )
    for number, name in enumerate(names):
        port = args.base_port + number
        if settings and supervisord_pid(name) is None and processes.end_all_under(LAB / name):
            die(f"{name}: its supervisord is gone and what it started can not be ended")
        if supervisord_pid(name) is None and port_taken(port):
            die(f"port {port}, wanted for {name}, is taken by another process: choose others with LAB_BASE_PORT=")


def up(args: argparse.Namespace) -> None:
    names = host_names(args.hosts)
    settings = read_settings()
    refuse_what_can_not_work(names, args, settings)
    if settings is None:
        settings = {"hosts": args.hosts, "base_port": args.base_port}
    settings["python"] = sys.executable
    # Written before anything starts, so that `down` and a second `up` find a half-started lab.
    write(LAB / "lab.json", json.dumps(settings, indent=1) + "\n")
    wheel = build_wheel()
    tools = make_tools(wheel)
    write(LAB / "lab.json", json.dumps({**settings, "package": str(wheel)}, indent=1) + "\n")
    make_model(tools)
    started = []
    for name in names:
        make_host(name, tools)
        if supervisord_pid(name) is None:
            start_supervisord(name)
            started.append(name)
    ports = f"ports {args.base_port} to {args.base_port + args.hosts - 1}"
    say(f"up: {names[0]} to {names[-1]}, {ports}, started now: {', '.join(started) or 'none'}. Stop it with make lab-down")


# ---- down


def down(_args: argparse.Namespace) -> None:
    left = processes.end_all_under(LAB)
    if left:
        die("still running, lab kept: " + "; ".join(str(p) for p in left))
    if short_dir().exists():
        shutil.rmtree(short_dir())
    if LAB.exists():
        try:
            shutil.rmtree(LAB)
        except OSError as error:
            die(f"{LAB} can not be removed ({error.strerror}): if a playbook still runs, wait for it, then make lab-down again")
        say(f"down: {LAB} removed, no process left")
    else:
        say("down: there was no lab")


# ---- the rest


def scenario(args: argparse.Namespace) -> None:
    settings = read_settings()
    if settings is None:
        die("there is no lab: run make lab-up first")
    names = host_names(settings["hosts"])
    if args.host not in names:
        die(f"no host {args.host!r} in the lab, there are {', '.join(names)}")
    tools = LAB / "tools" / "bin" / "python"
    run(tools, "-m", "sglang.emulator", "set-scenario", LAB / args.host / "machine", args.name, *args.settings, cwd=LAB)
    say(f"{args.host}: scenario {' '.join([args.name, *args.settings])}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    commands = parser.add_subparsers(required=True)
    sub = commands.add_parser("up", help="start the lab, or what is missing of it")
    sub.add_argument("--hosts", type=int, default=3, choices=range(1, 100), metavar="N")
    sub.add_argument("--base-port", type=int, default=31001)
    sub.set_defaults(call=up)
    sub = commands.add_parser("down", help="stop the lab and remove every trace")
    sub.set_defaults(call=down)
    sub = commands.add_parser("scenario", help="make a host misbehave")
    sub.add_argument("host")
    sub.add_argument("name")
    sub.add_argument("settings", nargs="*", metavar="key=value")
    sub.set_defaults(call=scenario)
    args = parser.parse_args()
    with one_at_a_time():
        args.call(args)


if __name__ == "__main__":
    main()
