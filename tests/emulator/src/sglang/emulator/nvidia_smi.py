# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""``python -m sglang.emulator.nvidia_smi``: a stand-in for nvidia-smi that shows the emulated machine."""

from __future__ import annotations

import argparse
import functools
import signal
import sys
import time
from pathlib import Path
from typing import Any, Optional
from xml.etree import ElementTree

from sglang.emulator import machine as machines
from sglang.emulator.scenario import machine_from_environment

Row = dict[str, Any]
# field: (unit, value)
GPU_FIELDS: dict[str, Any] = {
    "index": ("", lambda g: g["index"]),
    "uuid": ("", lambda g: g["uuid"]),
    "name": ("", lambda g: g["name"]),
    "count": ("", lambda g: g["count"]),
    "serial": ("", lambda g: g["serial"]),
    "pci.bus_id": ("", lambda g: g["bus_id"]),
    "driver_version": ("", lambda g: g["driver_version"]),
    "compute_cap": ("", lambda g: g["compute_cap"]),
    "pstate": ("", lambda g: "P0" if g["busy"] else "P8"),
    "persistence_mode": ("", lambda g: "Enabled"),
    "compute_mode": ("", lambda g: "Default"),
    "gpu_recovery_action": ("", lambda g: g["recovery_action"]),
    "memory.total": ("MiB", lambda g: g["memory_total"]),
    "memory.reserved": ("MiB", lambda g: g["memory_reserved"]),
    "memory.used": ("MiB", lambda g: g["memory_used"]),
    "memory.free": ("MiB", lambda g: max(g["memory_total"] - g["memory_reserved"] - g["memory_used"], 0)),
    "utilization.gpu": ("%", lambda g: g["utilization"]),
    "utilization.memory": ("%", lambda g: g["utilization"] // 3),
    "power.draw": ("W", lambda g: "%.2f" % g["power"]),
    "power.draw.average": ("W", lambda g: "%.2f" % g["power"]),
    "power.draw.instant": ("W", lambda g: "%.2f" % g["power"]),
    "power.limit": ("W", lambda g: "%.2f" % g["power_limit"]),
    "temperature.gpu": ("", lambda g: int(28 + g["power"] / 12)),
    "temperature.memory": ("", lambda g: "N/A"),
    "clocks.sm": ("MHz", lambda g: 2430 if g["busy"] else 180),
    "clocks.mem": ("MHz", lambda g: 12481 if g["busy"] else 405),
    "pcie.link.gen.current": ("", lambda g: 5 if g["busy"] else 1),
    "pcie.link.gen.max": ("", lambda g: 5),
    "pcie.link.width.current": ("", lambda g: 16),
    "pcie.link.width.max": ("", lambda g: 16),
    "ecc.mode.current": ("", lambda g: "Enabled"),
    "ecc.errors.uncorrected.volatile.total": ("", lambda g: 0),
    "mig.mode.current": ("", lambda g: "Disabled"),
    "timestamp": ("", lambda g: time.strftime("%Y/%m/%d %H:%M:%S.000")),
}
GPU_ALIASES = {"gpu_name": "name", "gpu_uuid": "uuid", "gpu_bus_id": "pci.bus_id", "gpu_serial": "serial",
               "clocks.current.sm": "clocks.sm", "clocks.current.memory": "clocks.mem"}  # fmt: skip
APP_FIELDS: dict[str, Any] = {
    "pid": ("", lambda p: p["pid"]),
    "gpu_uuid": ("", lambda p: p["gpu"]["uuid"]),
    "gpu_name": ("", lambda p: p["gpu"]["name"]),
    "gpu_bus_id": ("", lambda p: p["gpu"]["bus_id"]),
    "gpu_serial": ("", lambda p: p["gpu"]["serial"]),
    "process_name": ("", lambda p: p["name"]),
    "used_gpu_memory": ("MiB", lambda p: p["memory_used_mib"]),
    "timestamp": ("", lambda p: time.strftime("%Y/%m/%d %H:%M:%S.000")),
}
APP_ALIASES = {"used_memory": "used_gpu_memory", "name": "process_name"}


def process_name(pid: int) -> str:
    """The command line's first word, or the rewritten title."""
    try:
        return Path("/proc/%d/cmdline" % pid).read_bytes().split(b"\0")[0].decode(errors="replace") or "[Not Found]"
    except OSError:
        return "[Not Found]"


def gpus() -> list[Row]:
    """The machine's GPUs with the fields of the machine itself merged in."""
    machine = machine_from_environment()
    data = machines.load(machine)
    rows = machines.devices(machine)
    common = {key: data[key] for key in ("driver_version", "cuda_version", "compute_cap")}
    for row in rows:
        row.update(common, count=len(rows), busy=bool(row["processes"]))
        row["processes"] = [{**entry, "name": process_name(entry["pid"]), "gpu": row} for entry in row["processes"]]
    return rows


def select(rows: list[Row], wanted: Optional[str]) -> list[Row]:
    """GPUs by index, UUID or bus id, comma separated; exits 6 when one does not exist."""
    if not wanted:
        return rows
    found = []
    for name in wanted.split(","):
        bus = name.lower()[-12:] if ":" in name else "?"
        match = [row for row in rows if name in (str(row["index"]), row["uuid"]) or row["bus_id"].lower().endswith(bus)]
        if not match:
            print("No devices were found")
            sys.exit(6)
        found += match
    return found


def table(rows: list[Row], names: str, fields: dict[str, Any], aliases: dict[str, str], style: str) -> None:
    """A csv query. An unknown field fails the whole query with exit 2."""
    styles = style.split(",")
    if styles[0] != "csv":
        print("\"--format=\" switch is missing. Please run 'nvidia-smi -h' for help.")
        sys.exit(2)
    wanted = [aliases.get(name.strip(), name.strip()) for name in names.split(",")]
    for name, original in zip(wanted, names.split(",")):
        if name not in fields:
            print('Field "%s" is not a valid field to query.\n' % original.strip())
            sys.exit(2)
    nounits = "nounits" in styles
    if "noheader" not in styles:
        print(", ".join(name + (" [%s]" % fields[name][0] if fields[name][0] else "") for name in wanted))
    for row in rows:
        cells = []
        for name in wanted:
            unit, value = fields[name]
            cells.append("%s%s" % (value(row), " " + unit if unit and not nounits else ""))
        print(", ".join(cells))


def cell(row: Row, name: str) -> str:
    """One value with its unit."""
    unit, value = GPU_FIELDS[name]
    return ("%s %s" % (value(row), unit)).strip()


def xml(rows: list[Row]) -> str:
    """``-q -x``: the elements a monitor reads."""
    root = ElementTree.Element("nvidia_smi_log")

    def add(parent: ElementTree.Element, tree: dict[str, Any]) -> None:
        for tag, value in tree.items():
            child = ElementTree.SubElement(parent, tag)
            if isinstance(value, dict):
                add(child, value)
            else:
                child.text = str(value)

    machine = machines.load(machine_from_environment())
    add(root, {"timestamp": time.strftime("%a %b %e %H:%M:%S %Y"), "driver_version": machine["driver_version"],
               "cuda_version": machine["cuda_version"], "attached_gpus": machine["count"]})  # fmt: skip
    for row in rows:
        gpu = ElementTree.SubElement(root, "gpu", id=row["bus_id"])
        value = functools.partial(cell, row)
        add(gpu, {
            "product_name": row["name"], "product_brand": "NVIDIA", "product_architecture": "Blackwell", "persistence_mode": "Enabled",
            "mig_mode": {"current_mig": "Disabled", "pending_mig": "Disabled"}, "serial": row["serial"], "uuid": row["uuid"],
            "minor_number": row["index"], "vbios_version": "98.02.81.00.01", "gpu_recovery_action": row["recovery_action"],
            "pci": {"pci_bus_id": row["bus_id"], "pci_gpu_link_info": {
                "pcie_gen": {"max_link_gen": 5, "current_link_gen": value("pcie.link.gen.current")},
                "link_widths": {"max_link_width": "16x", "current_link_width": "16x"}}, "replay_counter": 0},
            "performance_state": value("pstate"),
            "fb_memory_usage": {"total": value("memory.total"), "reserved": value("memory.reserved"), "used": value("memory.used"),
                                "free": value("memory.free")},
            "compute_mode": "Default",
            "utilization": {"gpu_util": value("utilization.gpu"), "memory_util": value("utilization.memory")},
            "ecc_mode": {"current_ecc": "Enabled", "pending_ecc": "Enabled"},
            "ecc_errors": {"volatile": {"sram_correctable": 0, "dram_correctable": 0, "dram_uncorrectable": 0},
                           "channel_repair_pending": "No", "tpc_repair_pending": "No"},
            "remapped_rows": {"remapped_row_corr": 0, "remapped_row_unc": 0, "remapped_row_pending": "No", "remapped_row_failure": "No"},
            "temperature": {"gpu_temp": value("temperature.gpu") + " C", "memory_temp": "N/A"},
            "gpu_power_readings": {"average_power_draw": value("power.draw"), "instant_power_draw": value("power.draw.instant"),
                                   "current_power_limit": value("power.limit")},
            "clocks": {"sm_clock": value("clocks.sm"), "mem_clock": value("clocks.mem")},
            "fabric": {"state": "N/A", "status": "N/A", "health": {"summary": "N/A"}},
            "processes": {},
        })  # fmt: skip
        processes = gpu.find("processes")
        assert processes is not None
        for entry in row["processes"]:
            add(ElementTree.SubElement(processes, "process_info"), {
                "gpu_instance_id": "N/A", "compute_instance_id": "N/A", "pid": entry["pid"], "type": "C", "process_name": entry["name"],
                "used_memory": "%d MiB" % entry["memory_used_mib"],
            })  # fmt: skip
    ElementTree.indent(root, "\t") if hasattr(ElementTree, "indent") else None
    body = ElementTree.tostring(root, encoding="unicode")
    return '<?xml version="1.0" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">\n%s\n' % body


def summary(rows: list[Row]) -> None:
    """The default table, in the usual 90 columns."""
    machine = machines.load(machine_from_environment())
    version = machine["driver_version"]
    line = "+" + "-" * 89 + "+"
    print(time.strftime("%a %b %e %H:%M:%S %Y"))
    print(line)
    first = " NVIDIA-SMI %-22s Driver Version: %-14s CUDA Version: %s" % (version, version, machine["cuda_version"])
    print("|%-89s|" % first)
    rule = "+-----------------------------------------+------------------------+----------------------+"
    print(rule)
    print("| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |")
    print("| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |")
    print(rule.replace("-", "="))
    for row in rows:
        name = row["name"] if len(row["name"]) <= 28 else row["name"][:25] + "..."
        state, temperature = GPU_FIELDS["pstate"][1](row), GPU_FIELDS["temperature.gpu"][1](row)
        print("| %3d  %-28s   On  |   %s Off | %20s |" % (row["index"], name, row["bus_id"], 0))
        used = "%8dMiB / %6dMiB" % (row["memory_used"], row["memory_total"])
        load = "| N/A  %3dC    %-3s%13dW / %5dW |%s | %6d%%      Default |"
        print(load % (temperature, state, row["power"], row["power_limit"], used, row["utilization"]))
        print(rule)
    print()
    print(line)
    print("| Processes:%78s|" % "")
    print("|  GPU   GI   CI              PID   Type   Process name                        GPU Memory |")
    print("|%s|" % ("=" * 89))
    found = [(row["index"], entry) for row in rows for entry in row["processes"]]
    for index, entry in found:
        print("|%5d   N/A  N/A %16d      C   %-33s %8dMiB |" % (index, entry["pid"], entry["name"][:33], entry["memory_used_mib"]))
    if not found:
        print("|  %-87s|" % "No running processes found")
    print(line)


def main() -> None:
    """Parse the options the project's tools use; unknown ones exit 2 as the real one (with its own wording)."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    parser = argparse.ArgumentParser(prog="nvidia-smi", allow_abbrev=False)
    parser.add_argument("-L", "--list-gpus", action="store_true")
    parser.add_argument("-q", "--query", action="store_true")
    parser.add_argument("-x", "--xml-format", action="store_true")
    parser.add_argument("-i", "--id")
    parser.add_argument("--query-gpu")
    parser.add_argument("--query-compute-apps")
    parser.add_argument("--format", default="")
    parser.add_argument("--help-query-gpu", action="store_true")
    options = parser.parse_args()
    if options.help_query_gpu:
        print('List of valid properties to query for the switch "--query-gpu":\n')
        print("\n\n".join('"%s"' % name for name in [*GPU_FIELDS, *GPU_ALIASES]))
        return
    rows = select(gpus(), options.id)
    if options.query_gpu:
        table(rows, options.query_gpu, GPU_FIELDS, GPU_ALIASES, options.format)
    elif options.query_compute_apps:
        table([entry for row in rows for entry in row["processes"]], options.query_compute_apps, APP_FIELDS, APP_ALIASES, options.format)
    elif options.list_gpus:
        for row in rows:
            print("GPU %d: %s (UUID: %s)" % (row["index"], row["name"], row["uuid"]))
    elif options.query and options.xml_format:
        sys.stdout.write(xml(rows))
    elif options.query:
        for row in rows:
            print("GPU %s" % row["bus_id"])
            for name in GPU_FIELDS:
                print("    %-40s: %s" % (name, cell(row, name)))
    else:
        summary(rows)


if __name__ == "__main__":
    main()
