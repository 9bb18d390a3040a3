"""What users of kubectl expect of a listing: -o name, -o jsonpath=TEMPLATE, -w and -A."""

import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cni.cli import attachments
from cni.cli.terminal import jsonpath
from cni.shared.spec.errors import InvalidConfig
from tests.blackbox.command import run_any as run
from tests.node import COMMAND

FOUND = [
    {"network": "rdma-net", "containerID": "c1", "ifname": "net1", "pod": "team/a",
     "addresses": ["10.0.0.1", "fd00::1"]},
    {"network": "rdma-net", "containerID": "c1", "ifname": "net2", "pod": "team/a", "addresses": []},
    {"network": "other", "containerID": "c2", "ifname": "net1", "pod": "b/c", "addresses": ["10.0.0.2"], "a.b/c": True},
]  # fmt: skip
MORE = {"netns": "/proc/1/ns/net", "alive": True, "pending": ""}


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    known = [{**one, **MORE} for one in FOUND]
    monkeypatch.setattr(attachments, "found", lambda directory: list(known))
    return known


def filled(template: str, document: Any) -> str:
    return jsonpath.fill(jsonpath.read(template), document, document)


def test_o_name_prints_what_names_each_row_once_and_without_a_head(found: object) -> None:
    assert run("attachments", "-o", "name") == "c1\nc2\n"
    assert run("attachments", "-A", "-o", "name", "--pod", "team/a") == "c1\n"


def test_a_text_that_nothing_was_found_lists_the_filters(found: object) -> None:
    assert "no attachment with --network x, --pod team/a in " in run("attachments", "--network", "x", "--pod", "team/a")


@pytest.mark.parametrize(("template", "text"), [
    ("{[*].pod}", "team/a team/a b/c"), ("{[0].addresses[1]}", "fd00::1"),
    ("{[-1].ifname} of {$[2]['pod']}", "net1 of b/c"), ("{[9].pod}", ""), ("{[*].nothing}", ""),
    ("{[1].addresses}", "[]"), (r"{[*].a\.b/c}", "true"),
    (r'{range [*]}{.pod}{"\t"}{.addresses[*]}{"\n"}{end}', "team/a\t10.0.0.1 fd00::1\nteam/a\t\nb/c\t10.0.0.2\n"),
    ("{range [*]}{range .addresses[*]}<{@}{$[0].pod}>{end}{end}", "<10.0.0.1team/a><fd00::1team/a><10.0.0.2team/a>"),
])  # fmt: skip
def test_jsonpath_is_filled_as_by_kubectl_from_what_o_json_prints(template: str, text: str, found: object) -> None:
    assert run("attachments", "-o", f"jsonpath={template}") == text
    assert filled(template, json.loads(run("attachments", "-o", "json"))) == text


def test_jsonpath_reads_an_object_by_its_keys() -> None:
    objects = {"kind": "List", "items": [{"metadata": {"name": "a"}}, {"metadata": {"name": "b"}}]}
    assert filled("{.items[*].metadata.name}", objects) == "a b"
    assert filled("{.items[0].*.name}{.kind}", objects) == "aList"


@pytest.mark.parametrize(("template", "said"), [
    ("", "want {PATH}, such as {[*].node}"), (".pod", "want {PATH}, such as {[*].node}"),
    ("{.pod", "{.pod is not understood"),
    ("x{[?(@.a==1)]}", "{[?(@.a==1)]} is not understood: a path has .key, ['key'], [NUMBER] and [*]"),
    ("{[*].a}{end}", "{end} without a {range}"), ("{range [*]}{.pod}", "a {range} has no {end}"),
])  # fmt: skip
def test_a_wrong_template_is_a_wrong_call_that_names_the_part(template: str, said: str) -> None:
    last = run("attachments", "-o", f"jsonpath={template}", code=2).splitlines()[-1]
    assert f"-o/--output: jsonpath={template}: {said}" in last


@pytest.mark.parametrize(("template", "document", "said"), [
    ("{.items[*]}", [], "{.items[*]}: .items is asked of a list: want [*] there"),
    ("{[0]}", {}, "{[0]}: [0] is asked of an object: want .key there"),
])  # fmt: skip
def test_a_path_that_cannot_fit_says_what_is_there(template: str, document: object, said: str) -> None:
    with pytest.raises(InvalidConfig, match="jsonpath") as fault:
        filled(template, document)
    assert said in fault.value.msg


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], object]]:
    """What happens during each pause of -w; Ctrl-C when the list is at its end."""
    steps: list[Callable[[], object]] = []

    def pause(seconds: float) -> None:
        if not steps:
            raise KeyboardInterrupt
        steps.pop(0)()

    monkeypatch.setattr(time, "sleep", pause)
    return steps


def test_w_prints_the_head_once_and_then_changed_rows(
    found: list[dict[str, Any]], steps: list[Callable[[], object]]
) -> None:
    steps += [
        lambda: None, lambda: found.append({**FOUND[0], **MORE, "ifname": "net9"}),
        lambda: found[1].update(pending="2026"), lambda: found.pop(0),
    ]  # fmt: skip
    lines = [" ".join(line.split()[:2]) for line in run("attachments", "-w").splitlines()]
    first = [f"{one['network']} {one['ifname']}" for one in FOUND]
    assert lines == ["NETWORK INTERFACE", *first, "rdma-net net9", "rdma-net net2"]


def test_w_prints_new_objects_alone_and_once_that_none_is(
    found: list[dict[str, Any]], steps: list[Callable[[], object]]
) -> None:
    first = found.pop()
    del found[:]
    steps += [lambda: None, lambda: found.append(first)]
    assert run("attachments", "-w").count("no attachment") == 1
    del found[:]
    steps += [lambda: None, lambda: found.append(first), lambda: None]
    assert run("attachments", "-w", "-o", "name") == "c2\n"


def test_w_ends_when_nobody_reads_its_output(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    argv = [*COMMAND, "attachments", "-w", "-o", "json", "--state-dir", str(tmp_path)]
    assert subprocess.run(argv, stdout=writer, stderr=subprocess.PIPE, timeout=60).returncode == 0
    os.close(writer)
