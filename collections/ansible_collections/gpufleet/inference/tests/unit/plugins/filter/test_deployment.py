# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The filter as Ansible calls it."""

from __future__ import annotations

import pytest
from ansible.errors import AnsibleFilterError
from ansible_collections.gpufleet.inference.plugins.filter.deployment import FilterModule


def test_it_builds():
    built = FilterModule().filters()["deployment"]({"gpu_class": "nvlink", "model_path": "/m"})
    assert built["profile"] == "nvlink"
    assert built["environment"] == {}


@pytest.mark.parametrize(
    ("settings", "message"),
    [("x", "deployment: expected a dictionary of settings, found str"), ({"gpu_class": "nvlink"}, "deployment: model_path is not set")],
)
def test_it_fails_with_one_message(settings, message):
    with pytest.raises(AnsibleFilterError, match=message):
        FilterModule().filters()["deployment"](settings)
