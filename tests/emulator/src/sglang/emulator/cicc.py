# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A process named ``cicc`` that uses a given share of one core until it is killed."""

import sys
import time

from sglang.emulator.process import die_with_parent, set_title


def main(share: float, period: float = 0.1) -> None:
    """Burn ``share`` of each ``period`` seconds."""
    die_with_parent()
    set_title("cicc")
    while True:
        end = time.process_time() + period * share
        while time.process_time() < end:
            pass
        time.sleep(period * (1 - share))


if __name__ == "__main__":
    main(float(sys.argv[1]))
