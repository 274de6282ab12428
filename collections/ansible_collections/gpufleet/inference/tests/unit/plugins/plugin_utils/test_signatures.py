# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The catalogue and the policy: what loads, and the message when something does not."""

from __future__ import annotations

import pathlib

import pytest
from ansible_collections.gpufleet.inference.plugins.plugin_utils import lines, policy, signatures

GOOD = """
family: mine
signatures:
  - id: my_sign
    when: hits.log.mine
    state: crashed
    action: escalate
    confidence: low
    means: ours
    lines: {log: {mine: 'our own text'}}
    references: [https://example.org]
    examples: {positive: [{log: our own text}], negative: [{log: other}]}
"""


def load(tmp_path: pathlib.Path, text: str) -> signatures.Catalog:
    file = tmp_path / "mine.yml"
    file.write_text(text)
    return signatures.load([str(file)])


def test_overlay_adds_and_changes_the_version(tmp_path: pathlib.Path) -> None:
    shipped, catalog = signatures.load(), load(tmp_path, GOOD)
    assert {signature.id for signature in catalog.signatures} - {signature.id for signature in shipped.signatures} == {"my_sign"}
    assert catalog.version != shipped.version
    assert {"name": "mine", "regex": "our own text"} in catalog.patterns["log"]
    assert set(catalog.patterns) == {"log", "kernel"}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("means: ours", "menas: ours", "my_sign: unknown key menas"),
        ("    means: ours\n", "", "my_sign: means: missing"),
        ("'our own text'", "'our (own'", "my_sign: lines.log.mine: bad regular expression"),
        ("'our own text'", "'(a+)+b'", "my_sign: lines.log.mine: an unbounded repeat"),
        ("hits.log.mine", "hits.log[", "my_sign: when: bad JMESPath"),
        ("when: hits.log.mine", "when: '!hits.log.mine'", "my_sign: when: JMESPath reads !a.b"),
        ("when: hits.log.mine", "when: hits.log.yours", "my_sign: when: hits.log.yours is no named line"),
        ("state: crashed", "state: broken", "my_sign: state: 'broken' is none of"),
        ("lines: {log:", "lines: {logs:", "my_sign: lines: unknown source logs"),
        ("family: mine", "famly: mine", "unknown key famly"),
        ("signatures:", "signatures: x #", "mine.yml"),
    ],
)
def test_errors_name_file_signature_and_key(tmp_path: pathlib.Path, old: str, new: str, message: str) -> None:
    assert old in GOOD
    with pytest.raises(signatures.SignatureError) as caught:
        load(tmp_path, GOOD.replace(old, new))
    assert "mine.yml" in str(caught.value)
    assert message in str(caught.value)


def test_missing_overlay() -> None:
    with pytest.raises(signatures.SignatureError, match=r"nowhere\.yml"):
        signatures.load(["/nonexistent/nowhere.yml"])


def test_every_pattern_has_a_literal_or_is_rare() -> None:
    catalog = signatures.load()
    bare = [name for patterns in catalog.lines.values() for name, pattern in patterns.items() if not lines.literals(pattern.pattern)]
    assert len(bare) <= 4, bare


def test_policy() -> None:
    assert policy.load({"normal_silence_s": {"weights_loading": 30}})["normal_silence_s"]["weights_loading"] == 30
    assert policy.load()["normal_silence_s"]["weights_loading"] == 600


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"normal_silence": {}}, "unknown key normal_silence"),
        ({"normal_silence_s": {"loading": 3}}, "unknown key normal_silence_s.loading"),
        ({"normal_silence_s": {"imports": "long"}}, "normal_silence_s.imports: expected a number"),
        ({"thresholds": {"majflt_per_s": -1}}, "thresholds.majflt_per_s: expected a number >= 0"),
        ({"thresholds": 3}, "thresholds: expected a mapping"),
        ([], "expected a mapping"),
    ],
)
def test_policy_errors_name_the_key(overrides: object, message: str) -> None:
    with pytest.raises(policy.PolicyError, match=message):
        policy.load(overrides)
