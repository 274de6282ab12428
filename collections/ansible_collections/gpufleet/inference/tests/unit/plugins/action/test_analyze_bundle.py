# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""analyze_bundle as a person runs it."""

from __future__ import annotations

import json
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[8]


def test_ad_hoc(tmp_path: pathlib.Path) -> None:
    good, bad = tmp_path / "good", tmp_path / "bad"
    good.mkdir()
    bad.mkdir()
    (good / "observed.yml").write_text("{process: running, port: listening, generate: ok}")
    (bad / "observed.yml").write_text("{gpu_count: 8}")
    ansible = pathlib.Path(sys.executable).with_name("ansible")
    arguments = json.dumps({"paths": [str(bad), str(good)]})
    environment = {
        **os.environ,
        "ANSIBLE_COLLECTIONS_PATH": str(ROOT / "collections"),
        "ANSIBLE_NOCOLOR": "1",
        "ANSIBLE_HOME": str(tmp_path / "home"),
    }
    run = subprocess.run(
        [str(ansible), "localhost", "-m", "gpufleet.inference.analyze_bundle", "-a", arguments],
        capture_output=True,
        text=True,
        env=environment,
        cwd=ROOT,
        check=False,
    )
    match = re.search(r"=> (\{.*\})\s*$", run.stdout, re.S)
    assert match, run.stdout + run.stderr
    found = json.loads(match.group(1))
    assert [result["path"] for result in found["results"]] == [str(bad), str(good)]
    assert found["results"][0]["error"].startswith("observed.yml: unknown key gpu_count")
    assert found["results"][1]["verdict"]["state"] == "serving"
    assert found["changed"] is False
