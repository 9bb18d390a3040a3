"""Tests that become another user do so by the fixture, so that .ci/run finds all of them."""

import re

from tests.node import ROOT


def test_no_test_becomes_another_user_but_by_the_fixture() -> None:
    words = re.compile(r"os\.sete?uid|os\.setre[s]?uid|--reuid|\bsu -|runuser")
    found = [path.relative_to(ROOT) for path in ROOT.glob("tests/**/*.py") if words.search(path.read_text())]
    assert [str(path) for path in found if path.name not in ("users.py", "test_users.py")] == []
