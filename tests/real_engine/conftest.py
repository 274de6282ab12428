# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The real engine and the emulator, each run once for all tests here. The real one only where it is asked for."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from conformance import compare, install
from conformance.run import Runs, scenarios

REAL = os.environ.get("GPUFLEET_TEST_REAL") == "1"
REAL_PORTS, EMULATOR_PORTS = 31601, 31701
# Not part of a plain run while the emulator still differs from the recordings.
COMPARISONS = ("test_conformance.py", "test_spoiled.py")


def pytest_configure(config: pytest.Config) -> None:
    """Announce our marker."""
    config.addinivalue_line("markers", "real_engine: starts the real engine")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of the real engine and the comparison with it are skipped in a plain run, with the command that runs them."""
    if not REAL:
        for item in items:
            if item.get_closest_marker("real_engine") or item.path.name in COMPARISONS:
                item.add_marker(pytest.mark.skip(reason="starts servers for twenty minutes: make test-real"))


def _wanted(request: pytest.FixtureRequest, fixture: str, target: str) -> list[str]:
    """The scenarios that the selected tests need: all, where one of them looks at all."""
    items = [item for item in request.session.items if fixture in getattr(item, "fixturenames", ())]
    named = {getattr(item, "callspec", None) and item.callspec.params.get("scenario") for item in items}  # type: ignore[attr-defined]
    return [name for name in scenarios(target) if None in named or name in named]


@pytest.fixture(scope="session")
def real_runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    """The scenarios on the real engine; GPUFLEET_CONFORMANCE_OUT keeps what was seen."""
    folder = Path(os.environ.get("GPUFLEET_CONFORMANCE_OUT") or tmp_path_factory.mktemp("real"))
    runs = Runs(install.real(), folder, REAL_PORTS, _wanted(request, "real_runs", "real"))
    yield runs
    runs.close()


@pytest.fixture(scope="session")
def emulator_runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    """The scenarios on the emulator, without verdicts: those have their own tests."""
    folder = tmp_path_factory.mktemp("emulator")
    names = _wanted(request, "emulator_runs", "emulator")
    runs = Runs(install.emulator(folder / "install"), folder / "seen", EMULATOR_PORTS, names, judged=False)
    yield runs
    runs.close()


@pytest.fixture(scope="session")
def recorded() -> dict[str, Any]:
    """What the real engine showed when it was last recorded."""
    return compare.load(compare.OBSERVED)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test for each scenario that a target can show."""
    if "scenario" in metafunc.fixturenames:
        metafunc.parametrize("scenario", scenarios("real" if "real_runs" in metafunc.fixturenames else "emulator"))
