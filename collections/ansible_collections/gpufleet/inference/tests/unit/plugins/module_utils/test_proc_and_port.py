# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import os
import socket
import threading

from ansible_collections.gpufleet.inference.plugins.module_utils import _port, _proc

TABLE = """  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 00000000:7530 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1 0000000000000000 100 0 0 10 0
   1: 0100007F:7530 0100007F:D431 01 00000000:00000000 00:00000000 00000000     0        0 4712 1 0000000000000000 20 4 30 10 -1
   2: 00000000:7531 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4713 1 0000000000000000 100 0 0 10 0
"""


def test_stat_of_a_command_with_blanks_and_brackets():
    line = "12 (a) b (c) R 1 2 3 0 -1 0 0 0 7 0 100 50 0 0 20 0 9 0 4242 0 0"
    stat = _proc.parse_stat(line)
    assert (stat.comm, stat.state, stat.ppid, stat.majflt, stat.cpu, stat.threads, stat.start) == ("a) b (c", "R", 1, 7, 150, 9, 4242)
    assert _proc.parse_stat("garbage") is None


def test_our_own_process():
    stat = _proc.stat(os.getpid())
    assert stat.ppid == os.getppid() and stat.threads >= 1
    assert _proc.start_time(stat.start, _proc.boot_time()) > 1.6e9
    assert _proc.cmdline(os.getpid()) and _proc.environ(os.getpid())


def test_a_process_that_is_gone():
    gone = 2**22 - 7
    assert _proc.stat(gone) is None and _proc.cmdline(gone) == [] and _proc.pairs(f"/proc/{gone}/io") == {}


def test_listeners_of_a_table():
    assert _port.parse_listeners(TABLE, 0x7530) == {"4711"}


def test_port_closed_ours_and_foreign(free_port):
    port = free_port()
    assert _port.collect(port, None, [])["listening"] is False
    for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        with socket.create_server((address, 0), family=family) as door:
            port = door.getsockname()[1]
            assert _port.collect(port, None, [os.getpid()]) | {"ours": True} == _port.collect(port, os.getpid(), [os.getpid()])
            foreign = _port.collect(port, None, [1])
            assert (foreign["ours"], foreign["owner_pid"]) == (False, os.getpid())


def test_threads_are_counted():
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    before = _proc.stat(os.getpid()).threads
    thread.start()
    assert _proc.stat(os.getpid()).threads == before + 1
    done.set()
    thread.join()
