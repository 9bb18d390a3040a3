"""What tests of others keep to: an unwell server beside a well one (tests/served.py), another user by the fixture alone."""

import re
import subprocess
import sys
from pathlib import Path

from tests.node import ROOT

PLANTED = """
import pytest
from tests import served

server = pytest.fixture(params=["well", "unwell"])(lambda request: served.note())
alone = pytest.fixture(lambda: served.note())

def test_both(server): pass
@pytest.mark.well("it counts requests")
def test_marked(server): pass
@pytest.mark.well("it counts requests")
def test_marked_alone(alone): pass
def test_its_own():
    served.note()
    served.note_unwell()
def test_no_server(): pass
def test_lacks(alone): pass
def test_lacks_in_its_body(): served.note()
@pytest.mark.parametrize("kind", ["etcd"])
def test_lacks_in_a_case(kind): served.note()
@pytest.mark.parametrize("kind", ["etcd", "a, unwell", "b, unwell", "c, unwell"])
def test_all(kind): pass
"""
OUTCOMES = """
test_both[unwell] PASSED
test_marked[well] PASSED
test_marked_alone PASSED
test_its_own PASSED
test_no_server PASSED
test_lacks FAILED
test_lacks_in_its_body FAILED
test_lacks_in_a_case[etcd] FAILED
test_all[etcd] PASSED
test_all[UNWELL] PASSED
"""


def test_a_test_that_meets_a_store_s_server_alone_and_well_fails_until_it_says_why(tmp_path: Path) -> None:
    (tmp_path / "test_planted.py").write_text(PLANTED)
    plugins = ["-p", "no:cacheprovider", "-p", "tests.conftest", "-p", "tests.stores.conftest"]
    options = ["-v", *plugins, "-c", f"{ROOT}/pyproject.toml", f"--rootdir={ROOT}"]
    argv = [sys.executable, "-m", "pytest", *options, "-n0", str(tmp_path)]
    said = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True).stdout
    lines = [
        line.split("::")[1].rpartition(" [")[0].strip() for line in said.splitlines() if "::" in line and "%]" in line
    ]
    lines[-1] = re.sub("[abc], unwell", "UNWELL", lines[-1])
    assert lines == OUTCOMES.split("\n")[1:-1], said
    assert said.count("this test meets the server of a store") >= 3


def test_no_test_becomes_another_user_but_by_the_fixture() -> None:
    words = re.compile(r"os\.sete?uid|os\.setre[s]?uid|--reuid|\bsu -|runuser")
    found = [path.relative_to(ROOT) for path in ROOT.glob("tests/**/*.py") if words.search(path.read_text())]
    assert [str(path) for path in found if path.name not in ("users.py", "test_served.py")] == []
