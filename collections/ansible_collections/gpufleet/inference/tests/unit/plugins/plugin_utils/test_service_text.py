# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a service manager reads back. For supervisor its own parser is asked; systemd's answers were seen on systemd 247 and 252."""

from __future__ import annotations

import shlex

import pytest
from ansible.errors import AnsibleFilterError
from ansible_collections.gpufleet.inference.plugins.filter.service_definition import FilterModule
from ansible_collections.gpufleet.inference.plugins.plugin_utils import service_text
from supervisor.datatypes import dict_of_key_value_pairs
from supervisor.options import UnhosedConfigParser, expand

WORDS = [
    "--plain",
    "two words",
    "it's",
    'say "x"',
    "a'b\"c",
    "$HOME",
    "${HOME}",
    "$$",
    "100%",
    "%h %n %%",
    "back\\slash",
    "trail\\",
    "\\x41\\n",
    "ünïcode ☃ 日本",
    ";",
    "a ; b",
    "#hash",
    "a #b",
    " #",
    "",
    "  lead",
    "tail  ",
    "`id`",
    "tab\there",
    '{"enable_multithread_load": true, "num_threads": 16}',
    '--json={"a": "it\'s 5% of $x"}',
    "'",
    '"',
    "\\",
]


def read_by_supervisor(command, environment):
    """The words and variables that supervisord itself makes of a program section."""
    parser = UnhosedConfigParser()
    parser.read_string(f"[program:x]\ncommand={command}\nenvironment={','.join(environment)}\n")
    here = {"here": "/", "program_name": "x"}
    return shlex.split(expand(parser.get("program:x", "command"), here, "command")), dict_of_key_value_pairs(
        expand(parser.get("program:x", "environment"), here, "environment")
    )


def read_by_systemd(command):
    """The words of a line in the subset of systemd's quoting that we write: plain words, and double quotes with escapes."""
    words, index = [], 0
    while index < len(command):
        if command[index] == " ":
            index += 1
            continue
        if command[index] != '"':
            end = command.find(" ", index)
            end = len(command) if end < 0 else end
            words.append(command[index:end])
            index = end
            continue
        index, word = index + 1, ""
        while command[index] != '"':
            pair = command[index : index + 2]
            plain = {"\\\\": "\\", '\\"': '"', "%%": "%", "$$": "$", "\\n": "\n", "\\r": "\r", "\\t": "\t"}.get(pair)
            assert plain is not None or pair[0] not in "%$\\", command
            word += pair[0] if plain is None else plain
            index += 1 if plain is None else 2
        words.append(word)
        index += 1
    return words


def define(manager, words=("/bin/python",), environment=None, **paths):
    return service_text.definition(manager, list(words), environment or {}, paths)


def test_supervisor_reads_every_word_back():
    made = define("supervisor", ["/bin/python", *WORDS])
    assert made["misfits"] == []
    assert read_by_supervisor(made["command"], ["A='1'"])[0] == ["/bin/python", *WORDS]


def test_systemd_reads_every_word_back():
    made = define("systemd", ["/bin/python", *WORDS, "nl\nthere"])
    assert made["misfits"] == []
    assert read_by_systemd(made["command"]) == ["/bin/python", *WORDS, "nl\nthere"]


@pytest.mark.parametrize(
    ("word", "line"),
    [
        # Each line on the right arrived as the word on the left in a process under systemd 252.
        ("--port=30000", "--port=30000"),
        ("it's", '"it\'s"'),
        ('{"a": true}', '"{\\"a\\": true}"'),
        ("5% of $x", '"5%% of $$x"'),
        ("trail\\", '"trail\\\\"'),
        (";", '";"'),
        ("", '""'),
        ("bell\x07", '"bell\\x07"'),
        ("nl\nthere", '"nl\\nthere"'),
        ("ünïcode", '"ünïcode"'),
    ],
)
def test_systemds_spelling(word, line):
    assert service_text.systemd_command([word]) == line


def test_systemds_environment_file():
    values = {"B": 'it\'s 5% of $HOME "q" \\ #x ünïcode\\', "A": 1}
    assert define("systemd", environment=values)["environment"] == [
        'A="1"',
        'B="it\'s 5% of $HOME \\"q\\" \\\\ #x ünïcode\\\\"',
    ]


def test_supervisor_reads_every_variable_back_or_says_that_it_can_not():
    values = {f"V{number}": word for number, word in enumerate([*WORDS, "in 'side' it", 'in "side" it', "a\nb"])}
    for name, value in values.items():
        made = define("supervisor", environment={name: value})
        if not made["misfits"]:
            assert read_by_supervisor("x", made["environment"])[1] == {name: value}
    refused = {name for name in values if define("supervisor", environment={name: values[name]})["misfits"]}
    assert {values[name] for name in refused} == {
        'say "x"',
        "a'b\"c",
        "a ; b",
        "a #b",
        " #",
        '--json={"a": "it\'s 5% of $x"}',
        "'",
        '"',
        "a\nb",
    }


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"words": ["/opt/a$b/python"]}, "the path of the program has a dollar sign: '/opt/a$b/python'"),
        ({"words": ["/bin/python", "a\0b"]}, "the command line has a null character in 'a\\x00b'"),
        ({"environment": {"A": "\x07"}}, "A has a control character"),
        ({"environment": {"A-B": "1"}}, "A-B has no valid name"),
        ({"sglang_log_path": "/var/log/*.log"}, "sglang_log_path has a letter that can not be written down in '/var/log/*.log'"),
        ({"sglang_work_dir": "/srv/run "}, "sglang_work_dir has a letter that can not be written down in '/srv/run '"),
    ],
)
def test_what_does_not_fit_is_named(given, message):
    assert define("systemd", **given)["misfits"] == [message]


def test_paths_are_quoted_and_may_have_blanks():
    made = define("systemd", work="/srv/100% mine")
    assert (made["paths"], made["misfits"]) == ({"work": "/srv/100%% mine"}, [])
    assert define("supervisor", work="/srv/100% mine")["misfits"] and not define("supervisor", work="/srv/all mine [*]")["misfits"]


def test_the_filter():
    quote = FilterModule().filters()["service_definition"]
    made = quote({"command": ["/bin/x", "5%"], "environment": {"A": True}}, "systemd", {"work": "/srv"})
    assert made == {"command": '/bin/x "5%%"', "environment": ['A="True"'], "paths": {"work": "/srv"}, "misfits": []}
    with pytest.raises(AnsibleFilterError, match="expected one of systemd, supervisor, found 'runit'"):
        quote({"command": ["/bin/x"]}, "runit")
    with pytest.raises(AnsibleFilterError, match="expected a dictionary with a command, found str"):
        quote("x", "systemd")
