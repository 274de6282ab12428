# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write the report of a run on the controller."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase
from ansible_collections.gpufleet.inference.plugins.plugin_utils import report
from ansible_collections.gpufleet.inference.plugins.plugin_utils.plain import plain


class ActionModule(ActionBase):  # type: ignore[misc]
    """Writes report-TIME.json and report-TIME.html with copies named latest, in check mode too: the report is the record of the run."""

    TRANSFERS_FILES = False
    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Returns json_path, html_path, rows and counts; fails when the directory can not be written."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        _checked, options = self.validate_argument_spec(
            argument_spec={
                "rows": {"type": "list", "elements": "dict", "required": True},
                "dir": {"type": "path", "required": True},
                "title": {"type": "str", "default": "gpufleet report"},
                "mode": {"type": "str"},
            }
        )
        options = plain(options)
        now = time.time()
        directory = Path(options["dir"])
        try:
            found = report.document(options["rows"], options["title"], now, options["mode"])
            paths = _write(
                directory, time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now)), {"json": report.as_json(found), "html": report.as_html(found)}
            )
        except report.ReportError as error:
            return {**result, "failed": True, "msg": f"fleet_report: {error}"}
        except OSError as error:
            return {**result, "failed": True, "msg": f"fleet_report: can not write the report into {directory}: {error.strerror or error}"}
        return {
            **result,
            "changed": True,
            "json_path": str(paths["json"]),
            "html_path": str(paths["html"]),
            "rows": found["rows"],
            "counts": found["counts"],
        }


def _write(directory: Path, stamp: str, texts: dict[str, str]) -> dict[str, Path]:
    """Writes each text under a name that no earlier report has, and as latest; returns the paths by suffix. Raises OSError."""
    directory.mkdir(mode=0o750, parents=True, exist_ok=True)
    name, number = f"report-{stamp}", 1
    while any((directory / f"{name}.{suffix}").exists() for suffix in texts):
        number += 1
        name = f"report-{stamp}-{number}"
    for suffix, text in texts.items():
        for stem in (name, "latest"):
            _replace(directory / f"{stem}.{suffix}", text)
    return {suffix: (directory / f"{name}.{suffix}").resolve() for suffix in texts}


def _replace(path: Path, text: str) -> None:
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        Path(temporary).chmod(0o640)
        Path(temporary).replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(temporary).unlink()
        raise
