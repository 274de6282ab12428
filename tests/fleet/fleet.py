# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Bring a fleet of real hosts up and down: each with its own systemd, sshd, journal, address and user, as containers that boot.

Everything lies under .fleet in the clone (GPUFLEET_FLEET_DIR names another folder) and in the container engine under names of this
fleet alone. The trees that hosts boot from are cached for all clones (GPUFLEET_CACHE_DIR).
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import ipaddress
import json
import os
import resource
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1] / "lab"))

import image
from containers import Engine, choose
from lab import EMULATOR, MODEL, PIP, ROOT, build_wheel, die, host_names, run, say, write

FLEET = Path(os.environ.get("GPUFLEET_FLEET_DIR") or ROOT / ".fleet").resolve()
SHARE = FLEET / "share"  # every host has it, read-only
SHARED = "/srv/fleet"  # there
LOCKS = {"3.11": ROOT / "requirements" / "emulator.txt", "3.9": ROOT / "requirements" / "emulator_py39.txt"}
FIRST_ADDRESS = 11
RUNNING, FROZEN, STOPPED, ABSENT = "running", "frozen", "stopped", "absent"
STATES = {"running": RUNNING, "paused": FROZEN, "exited": STOPPED, "stopped": STOPPED}

# Runs on a host as root, each time the fleet is brought up.
PROVISION = """\
set -eu
install -d -m 0700 -o ops -g ops ~ops/.ssh
install -m 0600 -o ops -g ops {shared}/id_ed25519.pub ~ops/.ssh/authorized_keys
if ! cmp -s {shared}/wheels/content /opt/emulator/content; then
    rm -rf /opt/emulator
    mkdir -p /opt/emulator
    python3 -m zipfile -e {shared}/wheels/{wheel} /opt/emulator
    cp {shared}/wheels/content /opt/emulator/content
fi
cat >/usr/local/bin/emulator <<'END'
#!/bin/sh
PYTHONPATH=/opt/emulator PYTHONDONTWRITEBYTECODE=1 exec /usr/bin/python3 -m sglang.emulator "$@"
END
cat >/usr/local/bin/nvidia-smi <<'END'
#!/bin/sh
SGLANG_EMULATOR_MACHINE=/var/lib/machine PYTHONPATH=/opt/emulator PYTHONDONTWRITEBYTECODE=1 \\
    exec /usr/bin/python3 -m sglang.emulator.nvidia_smi "$@"
END
chmod 0755 /usr/local/bin/emulator /usr/local/bin/nvidia-smi
[ -e /var/lib/machine/machine.json ] || /usr/local/bin/emulator make-machine /var/lib/machine
"""


def read_settings() -> dict[str, Any] | None:
    """What `up` wrote, or None without a fleet."""
    try:
        settings: dict[str, Any] = json.loads((FLEET / "fleet.json").read_text())
    except (FileNotFoundError, NotADirectoryError, json.JSONDecodeError):
        return None
    return settings


@contextlib.contextmanager
def locked(how: int) -> Iterator[None]:
    """Keep `up` and `down` (LOCK_EX) apart from every other command (LOCK_SH). The lock is on the fleet's folder and leaves nothing."""
    while True:
        FLEET.mkdir(parents=True, exist_ok=True)
        held = os.open(FLEET, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(held, how)
            # Whoever held it may have removed the folder meanwhile.
            if FLEET.exists() and os.fstat(held).st_ino == FLEET.stat().st_ino:
                try:
                    yield
                finally:
                    with contextlib.suppress(OSError):
                        FLEET.rmdir()  # only if it is empty: nothing came of it, or everything was removed
                return
        finally:
            os.close(held)


class Fleet:
    """The fleet that is up, or half up."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings
        self.engine = Engine(settings["engine"], FLEET)
        self.hosts: dict[str, dict[str, Any]] = settings["hosts"]

    def container(self, host: str) -> str:
        """The host's name in the engine."""
        return f"{self.engine.prefix}-{host}"

    def state(self, host: str) -> str:
        """RUNNING, FROZEN, STOPPED or ABSENT."""
        done = self.engine.ask("inspect", "--type", "container", "--format", "{{.State.Status}}", self.container(host))
        return ABSENT if done.returncode else STATES.get(done.stdout.strip(), done.stdout.strip())

    def sh(self, host: str, script: str, timeout: float = 60) -> str:
        """Run a script on the host as root, not by ssh."""
        return self.engine.do("exec", "-i", self.container(host), "/bin/sh", timeout=timeout, stdin=None, input=script)

    def link(self, host: str, state: str) -> None:
        """Set the host's network interface up or down, in the host."""
        self.engine.do("exec", self.container(host), "ip", "link", "set", "eth0", state)

    def wait_booted(self, host: str, timeout: float = 60) -> str:
        """Wait until its boot is over and ssh answers; returns systemd's word for how it went."""
        deadline = time.monotonic() + timeout
        words = ("exec", self.container(host), "systemctl", "is-system-running", "--wait")
        while (found := self.engine.ask(*words, timeout=timeout).stdout.strip()) not in ("running", "degraded"):
            if time.monotonic() > deadline:
                die(f"{host} does not come up: {found}\n{self.engine.ask('logs', '--tail', '20', self.container(host)).stdout}")
            time.sleep(0.1)
        while not self.answers(host):
            if time.monotonic() > deadline:
                die(f"{host} has booted, but no ssh answers at {self.hosts[host]['address']}")
            time.sleep(0.1)
        return found

    def answers(self, host: str) -> bool:
        """Whether its sshd greets."""
        try:
            with socket.create_connection((self.hosts[host]["address"], 22), timeout=2) as connection:
                return connection.recv(4) == b"SSH-"
        except OSError:
            return False


def the_fleet(host: str | None = None) -> Fleet:
    """The fleet, with that host in it."""
    settings = read_settings()
    if settings is None:
        die("there is no fleet: run make fleet-up first")
    if host is not None and host not in settings["hosts"]:
        die(f"no host {host!r} in the fleet, there are {', '.join(settings['hosts'])}")
    return Fleet(settings)


# ---- up


def taken_networks() -> list[ipaddress.IPv4Network]:
    """What this machine reaches without a gateway."""
    found = []
    for line in Path("/proc/net/route").read_text().splitlines()[1:]:
        _device, destination, _gateway, _flags, _count, _use, _metric, mask, *_ = line.split()
        address, bits = (int.from_bytes(bytes.fromhex(word), "little") for word in (destination, mask))
        if bits:
            found.append(ipaddress.IPv4Network((address, bits.bit_count())))
    return found


def choose_subnet(wanted: str | None) -> str:
    """The subnet asked for, else the first free one of ours."""
    taken = taken_networks()
    if wanted:
        try:
            subnet = ipaddress.IPv4Network(wanted)
        except ValueError as error:
            die(f"--subnet: {error}")
        if subnet.prefixlen > 24:
            die(f"--subnet {wanted} is smaller than a /24")
        clash = [str(network) for network in taken if network.overlaps(subnet)]
        if clash:
            die(f"--subnet {wanted} overlaps {', '.join(clash)}, which this machine has already")
        return wanted
    for third in range(80, 120):
        subnet = ipaddress.IPv4Network(f"10.89.{third}.0/24")
        if not any(network.overlaps(subnet) for network in taken):
            return str(subnet)
    return die("no free subnet from 10.89.80.0/24 to 10.89.119.0/24: choose another one with --subnet")


def refuse_what_can_not_work(args: argparse.Namespace, settings: dict[str, Any] | None) -> None:
    """End with a message before anything is changed."""
    missing = [tool for tool in ("ssh", "ssh-keygen") if shutil.which(tool) is None]
    if missing:
        die(f"{' and '.join(missing)} not installed")
    if not EMULATOR.joinpath("pyproject.toml").is_file():
        die(f"{EMULATOR} is missing: the clone is incomplete")
    if any(letter.isspace() or letter in ":,'\"" for letter in str(FLEET)):
        die(f"the path {str(FLEET)!r} has a character that the options of pip and of the engine can not express: move the clone")
    if settings and len(settings["hosts"]) != args.hosts:
        die(f"a fleet with {len(settings['hosts'])} hosts is up already and {args.hosts} were asked for: run make fleet-down first")
    if settings is None:
        choose_subnet(args.subnet)
    elif args.subnet and settings["subnet"] != args.subnet:
        die(f"a fleet in {settings['subnet']} is up already and {args.subnet} was asked for: run make fleet-down first")


def describe(args: argparse.Namespace, engine: str) -> dict[str, Any]:
    """A new fleet's settings. Of two or more hosts the last one has the older Debian, and with it the oldest Python."""
    subnet = choose_subnet(args.subnet)
    network = ipaddress.IPv4Network(subnet)
    names = host_names(args.hosts)
    releases = ["bookworm"] * len(names)
    if len(names) > 1:
        releases[-1] = "bullseye"
    return {
        "engine": engine,
        "subnet": subnet,
        "hosts": {
            name: {"address": str(network[FIRST_ADDRESS + index]), "release": release, "python": image.PYTHON[release]}
            for index, (name, release) in enumerate(zip(names, releases, strict=True))
        },
    }


def make_share() -> Path:
    """What every host can read: the emulator's wheel with what it needs on each Python, and a model. Returns the wheel."""
    wheel = build_wheel(SHARE)
    content = wheel.parent / "content"
    if not content.exists():
        for python, lock in LOCKS.items():
            options = ("--no-deps", "--require-hashes", "--only-binary", ":all:", "--python-version", python)
            run(*PIP, "download", *options, "--dest", wheel.parent, "-r", lock)
        (stamp,) = wheel.parent.glob("*.stamp")
        write(content, stamp.stem + "\n")
    model = SHARE / "models" / MODEL
    if not model.exists():
        unfinished = model.with_name(model.name + ".new")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.parent.mkdir(exist_ok=True)
        source = {**os.environ, "PYTHONPATH": str(EMULATOR / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
        run(sys.executable, "-m", "sglang.emulator", "make-model", unfinished, env=source)
        unfinished.rename(model)
    if not (FLEET / "id_ed25519").exists():
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "gpufleet test fleet", "-f", FLEET / "id_ed25519")
    shutil.copy(FLEET / "id_ed25519.pub", SHARE / "id_ed25519.pub")
    shutil.copy(image.HERE / "boot.sh", SHARE / "boot.sh")
    return wheel


def start_host(fleet: Fleet, host: str, tree: str) -> None:
    engine, known = fleet.engine, fleet.hosts[host]
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    # podman lowers its own limit of processes to the kernel's before it starts anything.
    processes = min(resource.getrlimit(resource.RLIMIT_NPROC)[1], int(Path("/proc/sys/kernel/pid_max").read_text()))
    words = ["--detach", "--name", fleet.container(host), "--hostname", host, "--label", engine.label]
    words += ["--network", engine.prefix, "--ip", known["address"]]
    words += ["--privileged", "--cgroupns", "private", "--shm-size", "256m", "--pids-limit", "-1", "--stop-signal", "SIGRTMIN+3"]
    # More than the limits of this machine can not be given everywhere, root or not.
    words += ["--ulimit", f"nofile={min(1024, files)}:{files}", "--ulimit", f"nproc={processes}:{processes}"]
    # A host that shuts down to boot again ends its container, and the engine starts it anew. So does one whose power fails.
    words += ["--restart", "always", "--volume", "/var/log/journal", "--volume", f"{SHARE}:{SHARED}:ro"]
    if engine.podman:
        words += ["--systemd", "always", "--cgroup-parent", f"/{engine.prefix}", "--rootfs", str(engine.root(host, Path(tree)))]
    else:
        words += ["--tmpfs", "/run", "--tmpfs", "/run/lock", "--tmpfs", "/tmp:exec", tree]
    engine.do("run", *words, f"{SHARED}/boot.sh")


def start_hosts(fleet: Fleet, trees: dict[str, str]) -> list[str]:
    """Start those that do not run; returns their names."""
    states = {host: fleet.state(host) for host in fleet.hosts}
    for host, state in states.items():
        if state == "created":  # and never started: its start failed
            fleet.engine.do("rm", "--volumes", fleet.container(host))
        if state in (ABSENT, "created"):
            start_host(fleet, host, trees[fleet.hosts[host]["release"]])
        elif state == STOPPED:
            fleet.engine.do("start", fleet.container(host))
        elif state == FROZEN:
            fleet.engine.do("unpause", fleet.container(host))
    return [host for host, state in states.items() if state != RUNNING]


def up(args: argparse.Namespace) -> None:
    settings = read_settings()
    refuse_what_can_not_work(args, settings)
    engine = settings["engine"] if settings else choose()
    began = time.monotonic()
    wheel = make_share()
    # One fleet after the other: a tree is made once, and a subnet is seen to be taken only when its first host runs.
    with image.alone():
        containers = Engine(engine, FLEET)
        containers.open()
        networked = containers.has_network()
        if networked and settings is None:
            die(f"{FLEET}/fleet.json is gone, which says what this fleet is: run make fleet-down first")
        if not networked or settings is None:
            settings = describe(args, engine)
        settings["package"] = f"{SHARED}/wheels/{wheel.name}"
        # Written before any host starts, so that `down` and a second `up` find a half-made fleet.
        write(FLEET / "fleet.json", json.dumps(settings, indent=1) + "\n")
        fleet = Fleet(settings)
        trees = {release: image.bring(fleet.engine, release) for release in {known["release"] for known in fleet.hosts.values()}}
        if not networked:
            fleet.engine.make_network(settings["subnet"])
        started = start_hosts(fleet, trees)
    keys = []
    for host, known in fleet.hosts.items():
        fleet.link(host, "up")
        state = fleet.wait_booted(host)
        if host in started and state != "running":
            say(f"{host} is {state}:\n{fleet.sh(host, 'systemctl --failed --no-legend')}")
        fleet.sh(host, PROVISION.format(shared=SHARED, wheel=wheel.name))
        keys.append(f"{known['address']} {fleet.sh(host, 'cat /etc/ssh/ssh_host_ed25519_key.pub')}\n")
    write(FLEET / "known_hosts", "".join(keys))
    names = list(fleet.hosts)
    now = f"started now: {', '.join(started) or 'none'} ({time.monotonic() - began:.0f} s)"
    say(f"up: {names[0]} to {names[-1]} in {settings['subnet']}, {now}. Use -i inventories/fleet, stop it with make fleet-down")


# ---- down


def down(_args: argparse.Namespace) -> None:
    settings = read_settings()
    found = settings is not None
    engine = Engine(settings["engine"], FLEET) if settings else Engine("podman", FLEET)
    if settings and (not engine.podman or engine.holder()):
        names = engine.ask("ps", "--all", "--quiet", "--filter", f"label={engine.label}").stdout.split()
        if names:
            engine.do("rm", "--force", "--volumes", *(["--time", "0"] if engine.podman else []), *names, timeout=180)
        engine.ask("network", "rm", engine.prefix)
    if engine.podman and (engine.run_dir.exists() or engine.processes()):
        found = True
        engine.close()
    for entry in FLEET.iterdir():
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    say(f"down: {FLEET} removed, no host left" if found else "down: there was no fleet")


def clean(_args: argparse.Namespace) -> None:
    image.forget()


# ---- one host


def freeze(args: argparse.Namespace) -> None:
    fleet = the_fleet(args.host)
    if fleet.state(args.host) != FROZEN:
        fleet.engine.do("pause", fleet.container(args.host))
    say(f"{args.host} is frozen")


def thaw(args: argparse.Namespace) -> None:
    fleet = the_fleet(args.host)
    if fleet.state(args.host) == FROZEN:
        fleet.engine.do("unpause", fleet.container(args.host))
    say(f"{args.host} goes on")


def need_running(fleet: Fleet, host: str) -> None:
    state = fleet.state(host)
    if state != RUNNING:
        die(f"{host} is {state}")


def cut(args: argparse.Namespace) -> None:
    fleet = the_fleet(args.host)
    need_running(fleet, args.host)
    fleet.link(args.host, "down")
    say(f"{args.host} has no network")


def mend(args: argparse.Namespace) -> None:
    fleet = the_fleet(args.host)
    need_running(fleet, args.host)
    fleet.link(args.host, "up")
    deadline = time.monotonic() + 20
    while not fleet.answers(args.host):
        if time.monotonic() > deadline:
            die(f"{args.host} has its link again, but no ssh answers")
        time.sleep(0.1)
    say(f"{args.host} has its network again")


def stop(args: argparse.Namespace) -> None:
    """An orderly shutdown, as `systemctl poweroff` and no power afterwards."""
    fleet = the_fleet(args.host)
    if fleet.state(args.host) == FROZEN:
        die(f"{args.host} is frozen: thaw it first")
    fleet.engine.do("stop", "--time", str(args.timeout), fleet.container(args.host), timeout=args.timeout + 60)
    say(f"{args.host} is down")


def start(args: argparse.Namespace) -> None:
    fleet = the_fleet(args.host)
    if fleet.state(args.host) != RUNNING:
        fleet.engine.do("start", fleet.container(args.host))
    say(f"{args.host} is up, its systemd is {fleet.wait_booted(args.host)}")


def boot_id(fleet: Fleet, host: str) -> str:
    done = fleet.engine.ask("exec", fleet.container(host), "cat", "/proc/sys/kernel/random/boot_id")
    return "" if done.returncode else done.stdout.strip()


def reboot(args: argparse.Namespace) -> None:
    """What a person does: `systemctl reboot` on the host. Its services are stopped in order, then it boots."""
    fleet = the_fleet(args.host)
    need_running(fleet, args.host)
    before = boot_id(fleet, args.host)
    fleet.engine.ask("exec", fleet.container(args.host), "systemctl", "reboot")
    deadline = time.monotonic() + args.timeout
    while boot_id(fleet, args.host) in ("", before):
        if time.monotonic() > deadline:
            die(f"{args.host} did not reboot within {args.timeout} s, it is {fleet.state(args.host)}")
        time.sleep(0.2)
    say(f"{args.host} has rebooted, its systemd is {fleet.wait_booted(args.host)}")


def execute(args: argparse.Namespace) -> None:
    """Run a command on the host as root, also one that the network does not reach; ends with its exit status."""
    fleet = the_fleet(args.host)
    words = args.command[1:] if args.command[:1] == ["--"] else args.command
    need_running(fleet, args.host)
    argv = fleet.engine.command("exec", "-i", fleet.container(args.host), *(words or ["/bin/sh"]))
    try:
        sys.exit(subprocess.run(argv, timeout=args.timeout, check=False).returncode)
    except subprocess.TimeoutExpired:
        die(f"{args.host}: {' '.join(words)} did not end within {args.timeout:.0f} s")


def scenario(args: argparse.Namespace) -> None:
    fleet = the_fleet(args.host)
    need_running(fleet, args.host)
    words = ("/usr/local/bin/emulator", "set-scenario", "/var/lib/machine", args.name, *args.settings)
    fleet.engine.do("exec", fleet.container(args.host), *words)
    say(f"{args.host}: scenario {' '.join([args.name, *args.settings])}")


def status(_args: argparse.Namespace) -> None:
    fleet = the_fleet()
    for host, known in fleet.hosts.items():
        state = fleet.state(host)
        if state == RUNNING and not fleet.answers(host):
            state = "running, no ssh answers"
        print(f"{host}  {known['address']:15}  Debian {known['release']}, Python {known['python']:4}  {state}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    commands = parser.add_subparsers(required=True)

    def command(name: str, call: Any, text: str, host: bool = True) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text)
        if host:
            sub.add_argument("host")
        sub.set_defaults(call=call, lock=fcntl.LOCK_SH if host else 0)
        return sub

    sub = command("up", up, "start the hosts, or what is missing of them", host=False)
    sub.add_argument("--hosts", type=int, default=4, choices=range(1, 200), metavar="N")
    sub.add_argument("--subnet", help="a free IPv4 network of at least 256 addresses; without it the first free one from 10.89.80.0/24")
    sub.set_defaults(lock=fcntl.LOCK_EX)
    command("down", down, "remove the hosts and every trace of them", host=False).set_defaults(lock=fcntl.LOCK_EX)
    command("clean", clean, "remove the cached trees that hosts boot from", host=False)
    command("status", status, "list the hosts", host=False)
    command("freeze", freeze, "stop every process of a host at once")
    command("thaw", thaw, "let it go on")
    command("cut", cut, "take its network away")
    command("mend", mend, "give its network back")
    command("stop", stop, "shut it down in order").add_argument("--timeout", type=int, default=240)
    command("start", start, "boot it")
    command("reboot", reboot, "shut it down in order and boot it").add_argument("--timeout", type=int, default=240)
    sub = command("scenario", scenario, "make its server misbehave")
    sub.add_argument("name")
    sub.add_argument("settings", nargs="*", metavar="key=value")
    sub = command("exec", execute, "run a command on it as root, not by ssh")
    sub.add_argument("--timeout", type=float, default=600)
    sub.add_argument("command", nargs=argparse.REMAINDER)
    sub.set_defaults(lock=0)
    args = parser.parse_args()
    if args.lock == fcntl.LOCK_SH:
        the_fleet(args.host)
    with locked(args.lock) if args.lock else contextlib.nullcontext():
        args.call(args)


if __name__ == "__main__":
    main()
