"""The faults that the tests of the tests plant: each edit must fit the code as it is, or nothing is tried by it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.faults import test_etcd_histories, test_histories, test_planted_faults, test_plugin_machine
from tests.faults.tree import ROOT, Edit

MODULES = (test_etcd_histories, test_histories, test_planted_faults, test_plugin_machine)


def edits(value: Any) -> Iterator[Edit]:
    """All edits in a table, however deep."""
    if isinstance(value, Edit):
        yield value
    elif isinstance(value, dict | list | tuple):
        for member in value.values() if isinstance(value, dict) else value:
            yield from edits(member)


PLANTED = {edit: None for module in MODULES for value in vars(module).values() for edit in edits(value)}


@pytest.mark.parametrize("edit", PLANTED, ids=lambda edit: edit.file)
def test_a_planted_fault_fits_the_code_in_one_place(edit: Edit) -> None:
    assert len(re.findall(edit.old, (ROOT / edit.file).read_text())) == 1, edit.old
