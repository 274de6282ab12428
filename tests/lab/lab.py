# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Bring the embedded lab up and down: N hosts in folders, each with its own supervisord, GPUs, port and state.

Everything lies under .lab in the clone (GPUFLEET_LAB_DIR names another folder), so that removing it removes the lab. With
--engine real the hosts are to run the real engine on their processor: .lab_real, GPUFLEET_REAL_LAB_DIR.
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import processes

ROOT = Path(__file__).resolve().parents[2]
EMULATOR = ROOT / "tests" / "emulator"
ENGINE = ROOT / "tests" / "real_engine" / "engine.py"
LAB = Path(os.environ.get("GPUFLEET_LAB_DIR") or ROOT / ".lab").resolve()
REAL_LAB = Path(os.environ.get("GPUFLEET_REAL_LAB_DIR") or ROOT / ".lab_real").resolve()
COMMAND = Path(sys.argv[0]).stem  # the fleet uses some of this too
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
    sys.exit(f"{COMMAND}: {message}")


def say(message: str) -> None:
    print(f"{COMMAND}: {message}", flush=True)


def run(*argv: str | Path, **options: Any) -> None:
    """Run a command; its output is shown only when it fails."""
    words = [str(word) for word in argv]
    done = subprocess.run(
        words, check=False, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options
    )
    if done.returncode:
        die(f"{' '.join(words)} ended with {done.returncode}:\n{done.stdout}")


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


# ---- what every lab has


def host_names(count: int) -> list[str]:
    return [f"gpu{n:02d}" for n in range(1, count + 1)]


def port_taken(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("0.0.0.0", port))
        except OSError:
            return True
    return False


@dataclass(frozen=True)
class Lab:
    """Hosts in one folder. What they run is said by the classes below."""

    folder: Path
    make: str  # the beginning of its make targets

    def prepare(self) -> dict[str, str]:
        """Make what the hosts share; returns what the inventory must know of it."""
        raise NotImplementedError

    def check(self) -> None:
        """End with a message when the clone can not carry this lab."""

    def furnish(self, name: str) -> None:
        """Make what a host has beside the usual."""

    def read_settings(self) -> dict[str, Any] | None:
        """What `up` wrote, or None without a lab."""
        try:
            settings: dict[str, Any] = json.loads((self.folder / "lab.json").read_text())
        except (FileNotFoundError, json.JSONDecodeError):
            return None
        return settings

    # -- up

    def short_dir(self) -> Path:
        """A private folder of this lab under /tmp, for sockets only."""
        return Path("/tmp") / f"gpufleet-lab-{os.getuid()}-{hashlib.sha256(os.fsencode(self.folder)).hexdigest()[:12]}"

    def socket_path(self, name: str) -> Path:
        """The host's supervisord socket: in the lab, or in the short folder when its path there is too long for a socket."""
        path = self.folder / name / "run" / "supervisor.sock"
        if len(os.fsencode(path)) <= SOCKET_LIMIT:
            return path
        folder = self.short_dir()
        folder.mkdir(mode=0o700, exist_ok=True)
        if folder.is_symlink() or folder.stat().st_uid != os.getuid():
            die(f"{folder} belongs to somebody else")
        return folder / f"{name}.sock"

    def make_host(self, name: str) -> None:
        home = self.folder / name
        for folder in ("state", "home", "run", "log", "bin", "conf.d"):
            (home / folder).mkdir(parents=True, exist_ok=True)
        (home / "state").chmod(0o700)
        (home / "kernel.log").touch()
        # Supervisor expands %(name)s in its files.
        values = {"socket": self.socket_path(name), "name": name, "home": home}
        write(home / "supervisord.conf", SUPERVISORD_CONF.format(**{k: str(v).replace("%", "%%") for k, v in values.items()}))
        self.furnish(name)

    def supervisord_pid(self, name: str) -> int | None:
        """The process id of the host's live supervisord."""
        try:
            pid = int((self.folder / name / "run" / "supervisord.pid").read_text())
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except (OSError, ValueError):
            return None
        return pid if os.fsencode(self.folder / name / "supervisord.conf") in words else None

    def start_supervisord(self, name: str) -> None:
        home = self.folder / name
        self.socket_path(name).unlink(missing_ok=True)
        # Nothing of the caller's environment reaches the services.
        environment = {
            "HOME": str(home / "home"),
            "LANG": "C.UTF-8",
            "PATH": f"{home / 'bin'}:/usr/local/bin:/usr/bin:/bin",
        }
        run(sys.executable, "-W", "ignore", "-m", "supervisor.supervisord", "-c", home / "supervisord.conf", cwd=home, env=environment)
        deadline = time.monotonic() + 20
        while not (self.supervisord_pid(name) and self.socket_path(name).exists()):
            if time.monotonic() > deadline:
                die(f"{name}: supervisord did not start, see {home / 'run' / 'supervisord.log'}")
            time.sleep(0.05)

    def refuse_what_can_not_work(self, names: list[str], base_port: int, settings: dict[str, Any] | None) -> None:
        self.check()
        if any(letter.isspace() for letter in str(self.folder)):
            what = f"the path {str(self.folder)!r} has a space in it"
            die(f"{what}, which pip's options and supervisor's files can not express: move the clone")
        if settings and (settings["hosts"], settings["base_port"]) != (len(names), base_port):
            die(
                f"a lab with {settings['hosts']} hosts from port {settings['base_port']} is up already"
                f" and {len(names)} hosts from port {base_port} were asked for: run make {self.make}-down first"
            )
        for number, name in enumerate(names):
            port = base_port + number
            if settings and self.supervisord_pid(name) is None and processes.end_all_under(self.folder / name):
                die(f"{name}: its supervisord is gone and what it started can not be ended")
            if self.supervisord_pid(name) is None and port_taken(port):
                die(f"port {port}, wanted for {name}, is taken by another process: choose others with {self.make.upper()}_BASE_PORT=")

    def up(self, hosts: int, base_port: int) -> None:
        names = host_names(hosts)
        settings = self.read_settings()
        self.refuse_what_can_not_work(names, base_port, settings)
        if settings is None:
            settings = {"hosts": hosts, "base_port": base_port}
        settings["python"] = sys.executable
        # Written before anything starts, so that `down` and a second `up` find a half-started lab.
        write(self.folder / "lab.json", json.dumps(settings, indent=1) + "\n")
        write(self.folder / "lab.json", json.dumps({**settings, **self.prepare()}, indent=1) + "\n")
        started = []
        for name in names:
            self.make_host(name)
            if self.supervisord_pid(name) is None:
                self.start_supervisord(name)
                started.append(name)
        ports = f"ports {base_port} to {base_port + hosts - 1}"
        now = ", ".join(started) or "none"
        say(f"up: {names[0]} to {names[-1]}, {ports}, started now: {now}. Stop it with make {self.make}-down")

    # -- down

    def down(self) -> None:
        left = processes.end_all_under(self.folder)
        if left:
            die("still running, lab kept: " + "; ".join(str(p) for p in left))
        if self.short_dir().exists():
            shutil.rmtree(self.short_dir())
        if not self.folder.exists():
            say("down: there was no lab")
            return
        try:
            shutil.rmtree(self.folder)
        except OSError as error:
            again = f"if a playbook still runs, wait for it, then make {self.make}-down again"
            die(f"{self.folder} can not be removed ({error.strerror}): {again}")
        say(f"down: {self.folder} removed, no process left")


# ---- the emulated engine


def source_hash(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts and not any(p.endswith(".egg-info") for p in path.parts):
            digest.update(f"{path.relative_to(folder)}\0{path.stat().st_size}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def build_wheel(base: Path = LAB) -> Path:
    """Build the emulator's wheel, once per content of its source, and put what it needs beside it."""
    wheels = base / "wheels"
    stamp = wheels / f"{source_hash(EMULATOR)}.stamp"
    if stamp.exists():
        return wheels / stamp.read_text()
    shutil.rmtree(wheels, ignore_errors=True)
    wheels.mkdir(parents=True)
    source = base / "build"
    shutil.rmtree(source, ignore_errors=True)
    shutil.copytree(EMULATOR, source, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info", "build", "dist"))
    run(*PIP, "wheel", "--no-deps", "--no-index", "--no-build-isolation", "--wheel-dir", wheels, source)
    shutil.rmtree(source)
    run(*PIP, "download", "--no-deps", "--require-hashes", "--dest", wheels, "-r", ROOT / "requirements" / "emulator.txt")
    (wheel,) = wheels.glob("sglang-*.whl")
    write(stamp, wheel.name)
    return wheel


class EmulatorLab(Lab):
    """GPUs and engine are emulated, and misbehave on demand."""

    def __init__(self) -> None:
        super().__init__(LAB, "lab")

    def check(self) -> None:
        if not EMULATOR.joinpath("pyproject.toml").is_file():
            die(f"{EMULATOR} is missing: the clone is incomplete")

    def prepare(self) -> dict[str, str]:
        wheel = build_wheel(self.folder)
        self.make_tools(wheel)
        self.make_model()
        return {"package": str(wheel)}

    @property
    def tools(self) -> Path:
        """The interpreter of a venv with the emulator, for what the lab itself runs (nvidia-smi, the model maker)."""
        return self.folder / "tools" / "bin" / "python"

    def make_tools(self, wheel: Path) -> None:
        folder = self.folder / "tools"
        stamp = folder / "wheel"
        content = source_hash(wheel.parent)
        if stamp.exists() and stamp.read_text() == content:
            return
        shutil.rmtree(folder, ignore_errors=True)
        run(sys.executable, "-m", "venv", "--without-pip", folder)
        run(*PIP, "--python", self.tools, "install", "--no-index", "--find-links", wheel.parent, wheel)
        write(stamp, content)

    def make_model(self) -> None:
        model = self.folder / "models" / MODEL
        if model.exists():
            return
        unfinished = model.with_name(model.name + ".new")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.parent.mkdir(exist_ok=True)
        run(self.tools, "-m", "sglang.emulator", "make-model", unfinished, cwd=self.folder)
        unfinished.rename(model)

    def furnish(self, name: str) -> None:
        home = self.folder / name
        (home / "machine").mkdir(exist_ok=True)
        write(home / "bin" / "nvidia-smi", NVIDIA_SMI.format(machine=home / "machine", python=self.tools), 0o755)
        if not (home / "machine" / "machine.json").exists():
            run(self.tools, "-m", "sglang.emulator", "make-machine", home / "machine", cwd=home)

    def scenario(self, host: str, name: str, settings: list[str]) -> None:
        lab = self.read_settings()
        if lab is None:
            die("there is no lab: run make lab-up first")
        names = host_names(lab["hosts"])
        if host not in names:
            die(f"no host {host!r} in the lab, there are {', '.join(names)}")
        run(self.tools, "-m", "sglang.emulator", "set-scenario", self.folder / host / "machine", name, *settings, cwd=self.folder)
        say(f"{host}: scenario {' '.join([name, *settings])}")


# ---- the real engine


class RealLab(Lab):
    """Hosts without GPUs and the real engine, which was not installed by us: it lies in the user's cache."""

    def __init__(self) -> None:
        super().__init__(REAL_LAB, "real")

    def prepare(self) -> dict[str, str]:
        done = subprocess.run([sys.executable, str(ENGINE), "setup"], check=False, stdout=subprocess.PIPE, text=True)
        if done.returncode:
            sys.exit(done.returncode)
        return {"engine": done.stdout.strip()}


# ---- commands


LABS: dict[str, type[EmulatorLab | RealLab]] = {"emulator": EmulatorLab, "real": RealLab}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    commands = parser.add_subparsers(dest="command", required=True)
    which = argparse.ArgumentParser(add_help=False)
    which.add_argument("--engine", choices=LABS, default="emulator")
    sub = commands.add_parser("up", parents=[which], help="start the lab, or what is missing of it")
    sub.add_argument("--hosts", type=int, default=3, choices=range(1, 100), metavar="N")
    sub.add_argument("--base-port", type=int, default=31001)
    commands.add_parser("down", parents=[which], help="stop the lab and remove every trace")
    sub = commands.add_parser("scenario", help="make a host of the emulator's lab misbehave")
    sub.add_argument("host")
    sub.add_argument("name")
    sub.add_argument("settings", nargs="*", metavar="key=value")
    args = parser.parse_args()
    with one_at_a_time():
        if args.command == "scenario":
            EmulatorLab().scenario(args.host, args.name, args.settings)
        elif args.command == "up":
            LABS[args.engine]().up(args.hosts, args.base_port)
        else:
            LABS[args.engine]().down()


if __name__ == "__main__":
    main()
