"""The pages as a site: all of them, a search, and no dead link; and the pictures of screens are what the commands print."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.docs import screens
from tests.node import ROOT, unusable

needs_mkdocs = pytest.mark.skipif(not find_spec("mkdocs"), reason="needs mkdocs: run `make site` once")


def build(folder: Path, site: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(site)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


@pytest.fixture
def pages(tmp_path: Path) -> Path:
    """What the site is made of."""
    for name in ("docs", ".ci"):
        shutil.copytree(ROOT / name, tmp_path / name)
    for path in (ROOT / "mkdocs.yml", *ROOT.glob("*.md")):
        shutil.copy(path, tmp_path / path.name)
    return tmp_path


@needs_mkdocs
def test_each_page_is_in_the_site_and_the_search_finds_their_words(pages: Path) -> None:
    done = build(pages, pages / "site")
    assert done.returncode == 0, done.stderr
    made = {path.stem for path in (pages / "site").glob("*.html")}
    assert {path.stem for path in (ROOT / "docs").glob("*.md")} | {"index", "SECURITY"} <= made
    index = json.loads((pages / "site/search/search_index.json").read_text())
    assert any("ContainerCreating" in entry["text"] + entry["title"] for entry in index["docs"])
    for page in (pages / "site").glob("*.html"):
        for picture in re.findall(r"(?:src|srcset)=\"(screens/[^\"]+)", page.read_text()):
            assert (pages / "site" / picture).is_file(), (page.name, picture)


@needs_mkdocs
@pytest.mark.parametrize("link", ["[x](nowhere.md)", "[x](install.md#no-such-heading)"])
def test_a_dead_link_ends_the_build(link: str, pages: Path) -> None:
    page = pages / "docs/faq.md"
    page.write_text(f"{page.read_text()}\n{link}\n")
    assert build(pages, pages / "site").returncode != 0


def test_what_the_site_needs_is_pinned_and_agrees_with_what_the_tests_need() -> None:
    (wanted,) = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["site"]
    pins = {}
    for name in ("requirements-command.txt", "requirements.txt", "requirements-etcd3.txt", "requirements-site.txt"):
        for line in (ROOT / name).read_text().splitlines():
            package, sign, version = line.removesuffix(" \\").partition("==")
            if sign:
                assert pins.setdefault(package, version) == version, f"{package} in {name}"
    assert pins["mkdocs"].startswith(wanted.partition("~=")[2])


@pytest.mark.skipif(bool(unusable()), reason=unusable())
def test_the_pictures_are_what_the_commands_print() -> None:
    for name, width, console in screens.screens():
        drawn = (screens.FOLDER / f"{name}-{width}.txt").read_text()
        assert screens.shown(console) == drawn, f"{name} at {width} columns: draw it again with `make screens`"
        assert max(map(len, drawn.splitlines())) <= width
        for theme in screens.THEMES:
            assert (screens.FOLDER / f"{name}-{width}-{theme}.svg").is_file()
