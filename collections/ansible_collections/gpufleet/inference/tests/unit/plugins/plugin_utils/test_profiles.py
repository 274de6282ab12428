# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Profiles are read strictly, and fit the engine releases they say they are valid for."""

from __future__ import annotations

import copy

import pytest
from ansible_collections.gpufleet.inference.plugins.plugin_utils import deployment, profiles


@pytest.fixture
def data():
    return copy.deepcopy(profiles.read_yaml("profiles.yml"))


def test_exactly_the_profiles_we_promise():
    found = profiles.load()
    assert {name: p.gpu_class for name, p in found.profiles.items()} == {
        "triton_nccl_tuned": "sm120_pcie",
        "flashinfer": "sm120_pcie",
        "safe": "sm120_pcie",
        "nvlink": "nvlink",
        "nvlink_triton": "nvlink",
        "cpu": "cpu",
    }
    assert found.gpu_classes["sm120_pcie"].default == "triton_nccl_tuned"
    assert found.gpu_classes["nvlink"].default == "nvlink"
    assert "flashinfer" not in found.gpu_classes["sm120_pcie"].ladder


@pytest.mark.parametrize(
    ("name", "version"),
    [(name, v) for name in sorted(profiles.load().profiles) for v in ["0.5.9", "0.5.12.post1", "0.5.16"] if name != "cpu"]
    + [(name, "0.5.23") for name in sorted(profiles.load().profiles)],
)
def test_every_profile_builds_on_every_release(name, version):
    built = deployment.build({"profile": name, "engine_version": version, "model_path": "/models/k"})
    assert built["profile"] == name


def test_nvlink_profiles_set_no_nccl_variable():
    for profile in profiles.load().profiles.values():
        assert profile.gpu_class != "nvlink" or not profile.environment


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(extra=1), "profiles: unknown key 'extra'"),
        (lambda d: d.update(schema=2), "schema is 2"),
        (lambda d: d["profiles"]["safe"].update(flgs={}), "profiles.safe: unknown key 'flgs'"),
        (lambda d: d["profiles"]["safe"].pop("cost"), "profiles.safe: cost is missing"),
        (lambda d: d["profiles"]["safe"].update(flags=[]), "profiles.safe.flags: expected dict"),
        (lambda d: d["profiles"]["safe"]["environment"].update(NCCL_P2P_DISABLE=1), "NCCL_P2P_DISABLE: expected text in quotes"),
        (lambda d: d["profiles"]["safe"].update(gpu_class="x"), "'x' is not in gpu_classes"),
        (lambda d: d["gpu_classes"]["nvlink"].update(ladder=["safe"]), "profile 'safe' is for GPU class sm120_pcie"),
        (lambda d: d["gpu_classes"]["nvlink"].update(default="fast"), "unknown profile 'fast'"),
        (lambda d: d["profiles"].update(bad=None), "profiles.bad: expected a mapping"),
    ],
)
def test_what_is_wrong_is_named(data, change, message):
    change(data)
    with pytest.raises(profiles.DeploymentError, match=message):
        profiles.parse(data)
