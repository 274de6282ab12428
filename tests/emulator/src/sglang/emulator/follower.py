# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The main process of every node but the first: pages that say healthy whatever happens, and an end with its schedulers."""

from __future__ import annotations

import signal
import sys
from typing import Any, Callable

from sglang.emulator.http_server import Handler, Server
from sglang.emulator.log import Log

HEALTHY = ("/ping", "/health", "/health_generate")


def pages(request: Handler) -> None:
    """200 for health, without asking anybody; there is nothing else."""
    if request.path not in HEALTHY:
        body = b'{"detail":"Not Found"}'
        return request.send(404, body, "application/json", vary=False)
    if request.command != "GET":
        body = b'{"detail":"Method Not Allowed"}'
        return request.send(405, body, "application/json", vary=False, allow="GET")
    return request.send(200, b"", vary=False)


def serve(args: dict[str, Any], log: Log, handlers: dict[int, Callable[[], None]], processes: dict[str, Any]) -> None:
    """Serve the pages until the schedulers are gone; exit status 0, also when they were killed."""

    def on_sigterm() -> None:
        log.warning(
            "SIGTERM received on node_rank %d; waiting for the rank-0 ShutdownReq broadcast to stop the schedulers." % args["node_rank"]
        )

    handlers[signal.SIGTERM] = on_sigterm
    server = Server(args["host"], args["port"], pages, None)
    server.serve_in_background()
    log.info("Dummy health check server started in background thread at %s:%d" % (args["host"], args["port"]))
    for process in processes.values():
        process.join()
        log.error("Scheduler or DataParallelController %d terminated with %s" % (process.pid, process.exitcode))
    sys.exit(0)
