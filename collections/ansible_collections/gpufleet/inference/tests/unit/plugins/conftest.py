# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.testing import patch_module_args
from hypothesis import settings

MAIN = """
import os, signal, subprocess, sys, time
stubborn, listen = sys.argv[-2] == "stubborn", int(sys.argv[-1])
children = [subprocess.Popen([f"sglang::scheduler_TP{rank}", "300"], executable="/bin/sleep") for rank in range(2)]
if stubborn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if os.fork() == 0:
        os.setsid()
        subprocess.Popen(["sglang::scheduler_TP9", "300"], executable="/bin/sleep")
        os._exit(0)
    os.wait()
else:
    def stop(number, frame):
        for child in children:
            child.kill(); child.wait()
        os._exit(0)
    signal.signal(signal.SIGTERM, stop)
if listen:
    import socket
    door = socket.create_server(("127.0.0.1", listen))
print("up", flush=True)
while True:
    time.sleep(60)
"""

# A submission is judged on the same examples each time; new ones are for the desk, where their finder can look at them.
settings.register_profile("ci", derandomize=True)
if os.environ.get("CI"):
    settings.load_profile("ci")


class Server:
    """A process tree that looks like SGLang's from outside: main process, two schedulers, perhaps an orphan."""

    def __init__(self, directory, port, kind="tame", listen=False, output=subprocess.PIPE):
        self.work_dir, self.port = str(directory), port
        argv = [
            sys.executable,
            "-c",
            MAIN,
            "sglang.launch_server",
            "--port",
            str(port),
            "--api-key",
            "topsecret1",
            kind,
            str(port * listen),
        ]
        self.process = subprocess.Popen(argv, cwd=self.work_dir, stdout=output)
        while output is not subprocess.PIPE and not os.fstat(output.fileno()).st_size:
            time.sleep(0.02)
        assert output is not subprocess.PIPE or self.process.stdout.readline() == b"up\n"
        self.pid = self.process.pid

    def pids(self):
        """All living processes in the server's directory."""
        found = []
        for name in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{name}/stat") as file:
                    dead = file.read().rpartition(")")[2].split()[0] == "Z"
                if os.readlink(f"/proc/{name}/cwd") == self.work_dir and not dead:
                    found.append(int(name))
            except OSError:
                continue
        return found

    def close(self):
        for pid in self.pids():
            os.kill(pid, signal.SIGKILL)
        self.process.wait()
        if self.process.stdout:
            self.process.stdout.close()


@pytest.fixture
def start_server(tmp_path_factory, free_port):
    servers = []

    def start(**options):
        options.setdefault("port", free_port())
        servers.append(Server(tmp_path_factory.mktemp("work"), **options))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


@pytest.fixture
def free_port():
    import socket

    def find():
        with socket.create_server(("127.0.0.1", 0)) as door:
            return door.getsockname()[1]

    return find


@pytest.fixture
def run_module(capsys):
    def run(module, check=False, **args):
        with patch_module_args({**args, "_ansible_check_mode": check}), pytest.raises(SystemExit):
            module.main()
        return json.loads(capsys.readouterr().out)

    return run


@pytest.fixture
def warned(monkeypatch):
    """What modules warn about. In a process that has imported the controller's part, Ansible shows warnings and does not return them."""
    texts = []
    monkeypatch.setattr(AnsibleModule, "warn", lambda _module, text, **_options: texts.append(text))
    return texts


@pytest.fixture
def nvidia_smi(tmp_path):
    """A command that answers the two queries that we ask; `gpus` and `apps` are its csv rows, `unknown` a field it refuses."""

    def make(gpus, apps=(), unknown=None, prelude=""):
        path = tmp_path / "nvidia-smi"
        refuse = f'case "$1" in *{unknown}*) echo "Field \\"{unknown}\\" is not a valid field to query."; exit 2;; esac' if unknown else ""
        rows = "\n".join(gpus)
        path.write_text(
            f"#!/bin/sh\n{prelude}\n{refuse}\ncase \"$1\" in --query-gpu*) cat <<'X'\n{rows}\nX\n;; *) cat <<'X'\n"
            + "\n".join(apps)
            + "\nX\n;; esac\n"
        )
        path.chmod(0o755)
        return str(path)

    return make


@pytest.fixture
def serve():
    """An HTTP server whose answers are functions of the path: (code, body) or a callable on the handler."""
    doors = []

    def start(answers):
        class Handler(BaseHTTPRequestHandler):
            def answer(self):
                length = int(self.headers.get("Content-Length") or 0)
                self.body = json.loads(self.rfile.read(length)) if length else None
                self.server.seen.append((self.command, self.path, self.body, time.monotonic()))
                reply = answers.get(self.path, (404, ""))
                if callable(reply):
                    reply = reply(self)
                if reply is None:
                    return
                code, body = reply
                data = (body if isinstance(body, str) else json.dumps(body)).encode()
                self.send_response(code)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = answer

            def log_message(self, *_arguments):
                pass

            def handle(self):
                with contextlib.suppress(OSError):
                    super().handle()

        door = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        door.daemon_threads = True
        door.seen = []
        threading.Thread(target=door.serve_forever, daemon=True).start()
        doors.append(door)
        return door

    yield start
    for door in doors:
        door.shutdown()
        door.server_close()
