"""A bounded run of the machine, and a planted fault that it must find; `make histories` and `make soak` run it for longer."""

from pathlib import Path

import pytest

from tests.faults import tree
from tests.faults.plugin_machine import run
from tests.faults.tree import Edit
from tests.node import unusable

pytestmark = pytest.mark.skipif(bool(unusable()), reason=unusable())

FORGETFUL = Edit("ipam/rules.py", r"for lease in \(\*own, \*former\)", "for lease in former")


def test_the_plugins_do_what_dictionaries_would(executables: Path, tmp_path: Path) -> None:
    assert run(tree.copy(tmp_path), examples=1, steps=16) > 9


@pytest.mark.long
def test_a_retried_add_that_gets_another_address_is_found(executables: Path, tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        run(tree.copy(tmp_path, [FORGETFUL]), examples=40, steps=25)
