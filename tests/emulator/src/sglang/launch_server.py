# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""``python -m sglang.launch_server``. Children import this module too (multiprocessing spawn): keep the top empty."""

import sys

if __name__ == "__main__":
    from sglang.emulator.launcher import main

    sys.stderr.write(
        "UserWarning: 'python -m sglang.launch_server' is still supported, but 'sglang serve' is the recommended entrypoint.\n"
    )
    main(sys.argv[1:])
