# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reports are complete, and inert whatever a host wrote into its log."""

from __future__ import annotations

import json
from html.parser import HTMLParser

import pytest
from ansible_collections.gpufleet.inference.plugins.plugin_utils import report
from hypothesis import given, settings
from hypothesis import strategies as st

NOW = 1_800_000_000.0
ROW = {
    "host": "gpu02",
    "state_before": "stuck",
    "cause": "sm120_unsupported_backend",
    "confidence": "low",
    "action": "reconfigure",
    "state_after": "serving",
    "seconds": 211.6,
    "profile": "triton_nccl_tuned",
    "note": "cured",
    "reasons": [{"source": "log", "quote": "64/64", "means": "the bar is full"}, "no progress"],
    "evidence": "/var/lib/gpufleet/diag/1",
}


class Page(HTMLParser):
    """Counts tags and keeps text and attributes."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.words, self.attributes = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [name for name, _value in attrs]

    def handle_data(self, data):
        self.words.append(data.strip())


def html(*rows):
    return report.as_html(report.document(rows, "Remediation", NOW, "heal"))


def test_the_document():
    found = report.document([{**ROW, "host": "gpu03", "incident": "abc"}, ROW], "Remediation", NOW, "heal")
    assert json.loads(report.as_json(found)) == found
    assert (found["schema"], found["at"], found["mode"]) == (1, "2027-01-15T08:00:00Z", "heal")
    assert found["counts"] == {"hosts": 2, "state_before": {"stuck": 2}, "state_after": {"serving": 2}, "action": {"reconfigure": 2}}
    assert [row["host"] for row in found["rows"]] == ["gpu02", "gpu03"]
    assert found["rows"][0]["reasons"] == ["log: the bar is full (64/64)", "no progress"]
    assert found["rows"][0]["evidence"] == ["/var/lib/gpufleet/diag/1"]
    assert found["rows"][1]["incident"] == "abc"


def test_the_page_shows_every_column_and_needs_nothing_from_outside():
    page = html(ROW)
    words = Page(page).words
    for word in ("gpu02", "stuck", "sm120_unsupported_backend (low)", "serving", "212", "triton_nccl_tuned", "no progress"):
        assert word in words
    assert "Evidence: /var/lib/gpufleet/diag/1" in words
    assert "http://" not in page
    assert "https://" not in page
    assert {"script", "img", "link", "iframe"}.isdisjoint(Page(page).tags)


def test_a_row_with_a_host_alone_and_no_row_at_all():
    assert "gpu01" in html({"host": "gpu01"})
    assert "None" not in html({"host": "gpu01"})
    assert "0 hosts." in html()


@pytest.mark.parametrize("row", [{}, {"host": ""}, "gpu01"])
def test_a_row_without_host_is_an_error(row):
    with pytest.raises(report.ReportError, match="expected a dictionary with host"):
        report.document([row], "t", NOW)


hostile = st.one_of(
    st.text(), st.sampled_from(["</td><script>alert(1)</script>", '"onload="x', "'><img src=x>", "{{ 7*7 }}", "\x1b[31m\x00"])
)


@settings(deadline=None)
@given(st.fixed_dictionaries({name: hostile.filter(bool) for name in report.COLUMNS}))
def test_what_a_host_says_is_text(row):
    harmless = Page(html(dict.fromkeys(report.COLUMNS, "x")))
    attacked = Page(html(row))
    assert attacked.tags == harmless.tags
    assert attacked.attributes == harmless.attributes
    assert "49" not in html({"host": "x", "note": "{{ 7*7 }}"})
