# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Give ansible-test's virtual environments a pip without a download: the interpreter's own copy brings the wanted release."""

from __future__ import annotations

import subprocess
import sys

# These exist for get-pip alone; pip itself does not know them.
GET_PIP_OPTIONS = {"--no-setuptools", "--no-wheel"}


def main() -> int:
    """Unpack ensurepip's copy (in a child, as it changes the environment of its process), then install what was asked for."""
    requirements = [word for word in sys.argv[1:] if word not in GET_PIP_OPTIONS]
    for arguments in (["ensurepip"], ["pip", "install", "--quiet", *requirements]):
        code = subprocess.call([sys.executable, "-m", *arguments])
        if code:
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main())
