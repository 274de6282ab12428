# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What hosts boot from: Debian 12 (Python 3.11) and Debian 11 (Python 3.9).

For podman it is a folder in the cache, made by mmdebstrap where that is installed, else from the stock image; hosts of all fleets are
layered over it. For docker it is an image. Either way the packages and the set-up are the same.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from containers import Engine
from lab import die, run, say

HERE = Path(__file__).resolve().parent / "image"
PYTHON = {"bookworm": "3.11", "bullseye": "3.9"}
CONTENT = ("packages.txt", "setup.sh")
NAME = "localhost/gpufleet-host"


def cache() -> Path:
    """The folder for what is big and the same for all clones."""
    base = os.environ.get("GPUFLEET_CACHE_DIR")
    return Path(base) if base else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpufleet"


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Keep the fleets of all clones apart for a while. The lock is on the cache's folder, so it leaves nothing behind."""
    cache().mkdir(parents=True, exist_ok=True)
    held = os.open(cache(), os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield
    finally:
        os.close(held)


def recipe(release: str) -> str:
    """A hash over everything that the tree is made from."""
    digest = hashlib.sha256(release.encode())
    for name in CONTENT:
        digest.update(name.encode() + (HERE / name).read_bytes())
    return digest.hexdigest()[:12]


def mmdebstrap_works() -> bool:
    """Whether this machine can make Debian trees by itself."""
    return shutil.which("mmdebstrap") is not None and Path("/usr/share/keyrings/debian-archive-keyring.gpg").exists()


def bring(engine: Engine, release: str) -> str:
    """Make the tree or image unless it is there; returns its path or name."""
    return str(_tree(engine, release)) if engine.podman else _image(engine, release)


def _image(engine: Engine, release: str) -> str:
    image = f"{NAME}:{release}-{recipe(release)}"
    if engine.ask("image", "inspect", "--format", "x", image).returncode:
        say(f"building a Debian image ({release}) with {engine.name}, once")
        words = ("--build-arg", f"RELEASE={release}", "--tag", image, "--file", HERE / "Containerfile", HERE)
        # The steps need no container of their own, and podman can not make one everywhere that it can run hosts.
        isolation = ("--isolation", "chroot") if engine.podman else ()
        engine.do("build", "--network", "host", *isolation, *words, timeout=1800)
    return image


def _tree(engine: Engine, release: str) -> Path:
    tree = cache() / f"fleet-{release}-{recipe(release)}"
    if tree.exists():
        return tree
    unfinished = tree.with_name(f"{tree.name}.new")
    shutil.rmtree(unfinished, ignore_errors=True)
    try:
        if mmdebstrap_works():
            say(f"making a Debian tree ({release}), once: about half a minute and 100 MB of packages")
            _bootstrap(engine, release, unfinished)
        else:
            _export(engine, _image(engine, release), unfinished)
        unfinished.rename(tree)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return tree


def _bootstrap(engine: Engine, release: str, tree: Path) -> None:
    """Made in memory: packages are unpacked in many small steps, each of which a disk would want to be sure of."""
    packages = [line for line in (HERE / "packages.txt").read_text().split("\n") if line and not line.startswith("#")]
    hooks = [
        f"install -m 0755 '{HERE}/setup.sh' \"$1/setup.sh\"",
        'chroot "$1" /setup.sh',
        'rm "$1/setup.sh"',
    ]
    here = engine.ram / "build" / release
    words = ["--quiet", "--mode=root", "--format=directory", "--variant=minbase", f"--include={','.join(packages)}"]
    words += [f"--customize-hook={hook}" for hook in hooks]
    run(*engine.inside("mkdir", "-p", here.parent))
    run(*engine.inside("mmdebstrap", *words, release, here))
    run(*engine.inside("cp", "-a", here, tree))
    run(*engine.inside("rm", "-rf", here))


def _export(engine: Engine, image: str, tree: Path) -> None:
    """The files of an image."""
    container = engine.do("create", image, "true")
    tree.mkdir()
    with subprocess.Popen(engine.command("export", container), stdout=subprocess.PIPE) as source:
        done = subprocess.run(["tar", "-x", "-p", "--numeric-owner", "-C", str(tree)], stdin=source.stdout, check=False)
    if source.returncode or done.returncode:
        die(f"the files of {image} can not be written to {tree}")
    engine.do("rm", container)


def forget() -> None:
    """Remove the cached trees and docker's images."""
    for tree in sorted(cache().glob("fleet-*")):
        if tree.name.split("-")[1] in PYTHON:
            shutil.rmtree(tree)
            say(f"removed {tree}")
    if shutil.which("docker"):
        known = subprocess.run(["docker", "images", "--quiet", NAME], capture_output=True, text=True, check=False).stdout.split()
        if known:
            subprocess.run(["docker", "rmi", *sorted(set(known))], check=False)
