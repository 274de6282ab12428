# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""systemd itself: what it reads of a definition, and a stop out of each state that a unit can be in. The tests build on each other."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from ansible_collections.gpufleet.inference.plugins.plugin_utils import service_text

WORDS = [
    "--plain",
    "two words",
    "it's",
    "a'b\"c",
    "$HOME ${HOME} $$ $1",
    "100% %h %n %%",
    "back\\slash",
    "trail\\",
    "\\x41\\n",
    "ünïcode ☃ 日本",
    ";",
    "a ; b",
    "#hash #b",
    "",
    "  blanks  ",
    "`id` && | <> (a) [a] *",
    "tab\there\nnew line",
    '{"enable_multithread_load": true, "num_threads": 16}',
    '--json={"a": "it\'s 5% of $x"}',
    "'",
    '"',
]
PROGRAM = (
    "import json, os, sys; json.dump([sys.argv[1:], {k: v for k, v in os.environ.items() if k[:2] == 'V_'}], open('/run/q.json', 'w'))"
)
MAIN = "systemctl show sglang -p MainPID --value"


@pytest.fixture(scope="module")
def fleet(make_fleet: Callable[[int], Any]) -> Any:
    return make_fleet(1)


def write(fleet: Any, path: str, text: str) -> None:
    fleet.sh("gpu01", f"mkdir -p \"$(dirname '{path}')\"; echo {base64.b64encode(text.encode()).decode()} | base64 -d > '{path}'")


def test_systemd_hands_over_every_word_and_variable_unchanged(fleet: Any) -> None:
    variables = {f"V_{number}": word for number, word in enumerate(WORDS)}
    paths = {"home": "/srv/100% a blank", "file": "/srv/100% a blank/q.env"}
    made = service_text.definition("systemd", ["/usr/bin/python3", "-c", PROGRAM, *WORDS], variables, paths)
    assert made["misfits"] == []
    write(fleet, paths["file"], "\n".join(["# managed", *made["environment"], ""]))
    write(
        fleet,
        "/etc/systemd/system/q.service",
        f"[Service]\nType=oneshot\nWorkingDirectory={made['paths']['home']}\nEnvironmentFile={made['paths']['file']}\n"
        f"ExecStart={made['command']}\n",
    )
    fleet.sh("gpu01", "systemctl start q; systemctl show q -p Result; rm /etc/systemd/system/q.service")
    assert json.loads(fleet.sh("gpu01", "cat /run/q.json")) == [WORDS, variables]


def service(fleet: Any) -> dict[str, Any]:
    """The snapshot's service."""
    (found,) = fleet.diagnose("-a", "probe=none window=0.2 return_snapshot=true depth=quick").values()
    told: dict[str, Any] = found["snapshot"]["service"]
    return told


def stop(fleet: Any, term_timeout: int = 15) -> dict[str, Any]:
    done = fleet.run(
        *("ansible", "gpu01", "-i", "inventories/fleet", "-m", "gpufleet.inference.server_stop", "-a", f"term_timeout={term_timeout}")
    )
    found = re.search(r"=> (\{.*\})", done.out, re.S)
    assert found, done.out
    result: dict[str, Any] = json.loads(found.group(1))
    return result


def stopped(fleet: Any, **expected: Any) -> None:
    """Stop; then nothing is left, the unit is no failed one, and a second stop changes nothing."""
    result = stop(fleet)
    assert {key: result[key] for key in ("changed", "survivors", "foreign", *expected)} == {
        "changed": True,
        "survivors": [],
        "foreign": [],
        **expected,
    }, result
    told = service(fleet)
    assert (told["state"], told["desired"], told["unit_state"]) == ("stopped", "stopped", "inactive/dead"), told
    assert stop(fleet)["changed"] is False


def start(fleet: Any) -> None:
    fleet.sh("gpu01", "systemctl reset-failed sglang; systemctl start sglang")


def kill(fleet: Any, signal: str = "KILL") -> None:
    fleet.sh("gpu01", f"kill -{signal} $({MAIN}); sleep 2")


def test_deploy(fleet: Any) -> None:
    extra = ("-e", "sglang_restart=on-failure", "-e", "sglang_profile=triton_nccl_tuned")
    done = fleet.playbook("deploy.yml", *extra)
    assert done.code == 0, done.out
    before = fleet.reloads()
    done = fleet.playbook(
        "deploy.yml", *extra, "-e", '{"sglang_extra_environment": {"SGLANG_EMULATOR_MACHINE": "/var/lib/machine", "A": "b"}}'
    )
    assert done.code == 0 and done.recap["gpu01"]["changed"] > 0, done.out
    assert fleet.reloads() == before, "only the environment changed"


def test_stop_in_order(fleet: Any) -> None:
    result = stop(fleet)
    assert [(row["signal"], row["via"]) for row in result["signals"]] == [("TERM", "systemd")] and result["reset"] is False
    told = service(fleet)
    assert (told["state"], told["desired"], told["exit_code"], told["last_exit"]["asked"]) == ("stopped", "stopped", 0, True), told


def test_a_stop_between_two_tries_lasts(fleet: Any) -> None:
    write(fleet, "/etc/systemd/system/sglang.service.d/slow.conf", "[Service]\nRestartSec=600\n")  # a busy machine is slower than ours
    fleet.sh("gpu01", "systemctl daemon-reload")
    start(fleet)
    kill(fleet)
    told = service(fleet)
    assert (told["unit_state"], told["state"], told["desired"], told["exit_signal"]) == ("activating/auto-restart", "failed", "running", 9)
    stopped(fleet, signals=[], reset=True)
    fleet.sh("gpu01", "rm -r /etc/systemd/system/sglang.service.d; systemctl daemon-reload")


def test_a_configuration_that_the_engine_refuses_is_not_tried_again(fleet: Any) -> None:
    fleet.sh("gpu01", "mv /srv/fleet/models /srv/fleet/elsewhere 2>/dev/null || mount -t tmpfs none /srv/fleet/models")
    start(fleet)
    fleet.sh("gpu01", "sleep 6; umount /srv/fleet/models 2>/dev/null || mv /srv/fleet/elsewhere /srv/fleet/models")
    told = service(fleet)
    assert (told["unit_state"], told["exit_code"], told["desired"]) == ("failed/failed", 1, "running"), told
    stopped(fleet, signals=[], reset=True)
    told = service(fleet)
    assert (told["last_exit"]["exit_code"], told["last_exit"]["asked"]) == (1, True), "how it ended stays"


def test_an_end_without_an_error_that_nobody_asked_for_is_no_stop(fleet: Any) -> None:
    start(fleet)
    kill(fleet, "INT")
    told = service(fleet)
    assert (told["unit_state"], told["state"], told["desired"], told["exit_signal"]) == ("inactive/dead", "stopped", "running", 2), told
    fleet.sh("gpu01", "systemctl daemon-reload")
    assert service(fleet)["desired"] == "running"
    stopped(fleet, signals=[], reset=True)


def test_refused_starts_and_a_deploy_that_means_it(fleet: Any) -> None:
    out = fleet.sh(
        "gpu01", "systemctl reset-failed sglang; for n in 1 2 3 4; do systemctl start sglang 2>&1 && systemctl stop sglang; done; true"
    )
    assert "attempted too often" in out
    told = service(fleet)
    assert (told["result"], told["state"], told["desired"]) == ("start-limit-hit", "failed", "running"), told
    done = fleet.playbook("deploy.yml", "-e", "sglang_restart=on-failure", "-e", "sglang_profile=triton_nccl_tuned")
    assert done.code == 0, done.out
    assert service(fleet)["state"] == "running"


def test_a_stop_by_systemd_that_had_to_kill_is_a_stop(fleet: Any) -> None:
    fleet.tool("scenario", "gpu01", "stubborn", "base=healthy")
    fleet.sh("gpu01", "systemctl restart sglang; sleep 12; systemctl stop --no-block sglang; sleep 1")
    told = service(fleet)
    assert (told["unit_state"], told["state"], told["desired"]) == ("deactivating/stop-sigterm", "running", "stopped"), told
    fleet.sh("gpu01", "systemctl stop sglang")
    told = service(fleet)
    assert (told["unit_state"], told["result"], told["state"], told["desired"]) == ("failed/failed", "timeout", "stopped", "stopped"), told
    stopped(fleet, signals=[], reset=True)
    start(fleet)
    fleet.sh("gpu01", "sleep 12; systemctl stop --no-block sglang; sleep 1")
    result = stop(fleet, term_timeout=3)
    assert [row["signal"] for row in result["signals"]][:2] == ["TERM", "KILL"] and result["reset"] and not result["survivors"], result
    fleet.tool("scenario", "gpu01", "healthy")


def test_masked_and_missing(fleet: Any) -> None:
    fleet.sh("gpu01", "mv /etc/systemd/system/sglang.service /root; systemctl mask sglang; systemctl daemon-reload")
    told = service(fleet)
    assert (told["state"], told["desired"]) == ("absent", "stopped"), told
    fleet.sh("gpu01", "systemctl unmask sglang; systemctl daemon-reload")
    assert service(fleet)["state"] == "absent"
    assert stop(fleet)["changed"] is False
    fleet.sh("gpu01", "mv /root/sglang.service /etc/systemd/system; systemctl daemon-reload; systemctl disable sglang")
    assert service(fleet)["desired"] == "stopped"
    assert fleet.sh("gpu01", "ls /var/lib/gpufleet/exits | wc -l") == "10"
    assert fleet.sh("gpu01", "stat -c %a /var/lib/gpufleet/exits /opt/gpufleet/sglang.env").split() == ["700", "600"]
