# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The container engine under a fleet: podman as root, with a storage of the fleet's own, or a docker daemon.

podman runs inside a mount namespace that a sleeping process holds. So its mounts are seen by nobody else and end with it, and there
/sys/fs/cgroup is cgroup v2, which systemd in a container needs, also on a machine that has mounted the old hierarchies. What the hosts
write is kept in memory.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

from lab import die, run

HOLDER = """\
set -e
mount -t tmpfs -o mode=0755 fleet "$1"
mkdir "$1/storage" "$1/networks" "$1/hosts"
for folder in /run/netns /run/containers; do
    mkdir -p $folder
    mount -t tmpfs -o mode=0755 fleet $folder
done
if [ "$(stat -fc %T /sys/fs/cgroup)" != cgroup2fs ]; then umount -R /sys/fs/cgroup; mount -t cgroup2 none /sys/fs/cgroup; fi
exec -a "$0" sleep infinity"""
CGROUP_ROOTS = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified"))


def choose() -> str:
    """The engine to use: FLEET_ENGINE, else podman where we are root, else docker. Ends with what is missing."""
    wanted = os.environ.get("FLEET_ENGINE", "")
    if wanted not in ("", "podman", "docker"):
        die(f"FLEET_ENGINE is {wanted}, accepted are podman and docker")
    names = [wanted] if wanted else ["podman", "docker"]
    refused = {name: _refused(name) for name in names}
    for name in names:
        if refused[name] is None:
            return name
    return die("; ".join(filter(None, refused.values())))


def _refused(name: str) -> str | None:
    if shutil.which(name) is None:
        return f"{name} is not installed"
    if name == "podman":
        # A rootless network lies in a namespace of its own, where the controller does not reach the hosts.
        if os.geteuid() != 0:
            return "podman gives the hosts addresses that can be reached only when it is run by root"
        missing = [tool for tool in ("unshare", "nsenter", "bash") if shutil.which(tool) is None]
        return f"{' and '.join(missing)} not installed" if missing else None
    done = subprocess.run(["docker", "info", "--format", "{{.ServerVersion}}"], capture_output=True, text=True, timeout=30, check=False)
    return f"docker: {done.stderr.strip().splitlines()[-1] if done.stderr.strip() else 'no daemon'}" if done.returncode else None


class Engine:
    """The engine, for one fleet. Nothing of another fleet or of the machine's owner has such a name, label, storage or cgroup."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.folder = folder
        self.id = hashlib.sha256(os.fsencode(folder)).hexdigest()[:8]
        self.prefix = f"gpufleet-{self.id}"
        self.label = f"gpufleet.fleet={self.id}"
        self.run_dir = Path("/run") / self.prefix
        self.podman = name == "podman"
        self.ram = folder / "ram"  # seen only in the namespace

    def command(self, *words: str | Path) -> list[str]:
        """The argument list of an engine command."""
        if not self.podman:
            return ["docker", *map(str, words)]
        own: list[str | Path] = ["--root", self.ram / "storage", "--runroot", self.run_dir / "root", "--tmpdir", self.run_dir / "tmp"]
        own += ["--network-config-dir", self.ram / "networks", "--cgroup-manager", "cgroupfs", "--events-backend", "none"]
        return self.inside("podman", *own, *words)

    def inside(self, program: str, *words: str | Path) -> list[str]:
        """The argument list of a program in podman's namespace. Not every nsenter looks for it in PATH."""
        holder = self.holder()
        if holder is None:
            die(f"the namespace of the fleet in {self.folder} is gone: make fleet-down, then make fleet-up")
        return ["nsenter", f"--mount=/proc/{holder}/ns/mnt", str(shutil.which(program)), *map(str, words)]

    def root(self, host: str, tree: Path) -> Path:
        """A file system for a host over a tree that stays as it is."""
        here = self.ram / "hosts" / host
        root = here / "root"
        run(*self.inside("mkdir", "-p", here / "upper", here / "work", root))
        run(*self.inside("mount", "-t", "overlay", "-o", f"lowerdir={tree},upperdir={here}/upper,workdir={here}/work", host, root))
        return root

    def ask(self, *words: str | Path, timeout: float = 120, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run an engine command, whatever its exit status."""
        options = {"stdin": subprocess.DEVNULL, **options}
        try:
            return subprocess.run(self.command(*words), capture_output=True, text=True, timeout=timeout, check=False, **options)
        except subprocess.TimeoutExpired:
            die(f"{self.name} {' '.join(map(str, words[:3]))} did not end within {timeout:.0f} s")

    def do(self, *words: str | Path, timeout: float = 120, **options: Any) -> str:
        """Run an engine command that has to work; returns what it printed."""
        done = self.ask(*words, timeout=timeout, **options)
        if done.returncode:
            die(f"{self.name} {' '.join(map(str, words))} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        return done.stdout.strip()

    def has_network(self) -> bool:
        """Whether the fleet's subnet is its own already."""
        return self.ask("network", "inspect", self.prefix).returncode == 0

    def make_network(self, subnet: str) -> None:
        """A bridge of the fleet's own."""
        own = ["--disable-dns"] if self.podman else []
        self.do("network", "create", *own, "--label", self.label, "--subnet", subnet, self.prefix)
        if self.podman:
            (self.run_dir / "bridge").write_text(json.loads(self.do("network", "inspect", self.prefix))[0]["network_interface"])

    # ---- podman's namespace

    def holder(self) -> int | None:
        """A living process in the namespace: the one that was started to hold it, else one that watches over a container."""
        try:
            pid = int((self.run_dir / "holder").read_text())
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except (OSError, ValueError):
            words = [b""]
        if words[0] == f"{self.prefix}-holder".encode():
            return pid
        watching = [pid for pid, words in self.processes().items() if words[0].endswith("conmon") and "--exec-process-spec" not in words]
        return watching[0] if watching else None

    def open(self) -> None:
        """Make the namespace, if podman is used and it is not there."""
        if not self.podman or self.holder():
            return
        self.close()  # what a lost namespace left can not be reached any more
        self.run_dir.mkdir(mode=0o700, exist_ok=True)
        self.ram.mkdir(exist_ok=True)
        process = subprocess.Popen(
            ["unshare", "--mount", "--propagation", "private", "bash", "-c", HOLDER, f"{self.prefix}-holder", str(self.ram)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=(self.run_dir / "holder.log").open("wb"),
            start_new_session=True,
        )
        (self.run_dir / "holder").write_text(f"{process.pid}\n")
        deadline = time.monotonic() + 10
        while self.holder() is None:
            if process.poll() is not None or time.monotonic() > deadline:
                die(f"no mount namespace with cgroup v2 can be made: {(self.run_dir / 'holder.log').read_text().strip() or 'no answer'}")
            time.sleep(0.02)

    def processes(self) -> dict[int, list[str]]:
        """What runs in the fleet's cgroup or for its podman, with its arguments."""
        found = {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                cgroups = (entry / "cgroup").read_text()
                words = os.fsdecode((entry / "cmdline").read_bytes()).split("\0")
            except OSError:
                continue
            conmon = words[0].endswith("conmon") and str(self.run_dir / "tmp") in words
            if f":/{self.prefix}/" in cgroups or conmon or words[0] == f"{self.prefix}-holder":
                found[int(entry.name)] = words
        return found

    def close(self) -> None:
        """End the namespace and remove what podman leaves: cgroups, the bridge, run files."""
        if not self.podman:
            return
        deadline = time.monotonic() + 20
        while left := self.processes():
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if time.monotonic() > deadline:
                die(f"processes {sorted(left)} of the fleet can not be ended")
            time.sleep(0.1)
        for root in CGROUP_ROOTS:
            for folder in sorted((root / self.prefix).glob("**/"), reverse=True):
                folder.rmdir()
        bridge = (self.run_dir / "bridge").read_text() if (self.run_dir / "bridge").exists() else ""
        if bridge and Path(f"/sys/class/net/{bridge}").exists():  # podman was killed
            subprocess.run(["ip", "link", "delete", bridge], check=False)
        shutil.rmtree(self.run_dir, ignore_errors=True)
