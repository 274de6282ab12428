# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The engine's way to its parser, from our own table of flags."""

from __future__ import annotations

import argparse

from sglang.emulator.args import build_parser


class ServerArgs:
    """Only what is asked of it without a model: its flags."""

    @staticmethod
    def add_cli_args(parser: argparse.ArgumentParser) -> None:
        """Add every flag of the server to ``parser``."""
        for action in build_parser()._actions:
            if action.dest != "help":
                parser._add_action(action)
