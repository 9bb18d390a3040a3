"""The pages as a site: all of them, a search, and no dead link; and the pictures of screens are what the commands print."""

import json
import re
import shutil
import subprocess
import sys
import tomllib
from html import unescape
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.docs import screens
from tests.node import ROOT, unusable

needs_zensical = pytest.mark.skipif(not find_spec("zensical"), reason="needs zensical: run `make site` once")
BROWSER = shutil.which("chromium")
WIDTHS = [1280, 390]
LOOKED_AT = ("index", "docs/reference", "docs/install", "docs/development")
# Prints the tables and the code whose right end cannot be seen: wider than their box, and nothing there scrolls.
LOOK = """
const scrolls = e => ["auto", "scroll"].includes(e.ownerDocument.defaultView.getComputedStyle(e).overflowX);
const reached = e => e && (scrolls(e) || reached(e.parentElement));
const look = () => [...document.querySelectorAll("iframe")].map(frame => {
  const page = frame.contentDocument, seen = page.documentElement.clientWidth;
  const parts = [...page.querySelectorAll("article table, article th, article td, article pre, article pre code")];
  const cut = parts.filter(e => !reached(e) &&
    (e.scrollWidth > e.clientWidth + 1 || e.getBoundingClientRect().right > seen + 1));
  return {page: frame.id, width: seen, parts: parts.length, wider: page.documentElement.scrollWidth - seen,
    cut: cut.map(e => e.textContent.slice(0, 60)),
    tiny: [...page.querySelectorAll("article img")].filter(e => e.clientWidth < 600).map(e => e.src)};
});
onload = async () => {
  const found = [];
  for (const width of WIDTHS) {
    document.querySelectorAll("iframe").forEach(frame => { frame.style.width = width + "px"; });
    await new Promise(done => setTimeout(done, 1000));
    found.push(...look());
  }
  document.body.textContent = JSON.stringify(found);
};
"""


def build(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, ".ci/site.py"], cwd=folder, capture_output=True, text=True)


def pages(folder: Path) -> Path:
    """A copy of what the site is made of."""
    for name in ("docs", ".ci"):
        shutil.copytree(ROOT / name, folder / name)
    for path in (ROOT / "mkdocs.yml", ROOT / "pyproject.toml", *ROOT.glob("*.md")):
        shutil.copy(path, folder / path.name)
    return folder


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = pages(tmp_path_factory.mktemp("site"))
    description = folder / "pyproject.toml"
    description.write_text(f'{description.read_text()}\n[project.urls]\nSource = "https://github.com/owner/name"\n')
    done = build(folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "build/site"


@needs_zensical
def test_each_page_is_in_the_site_with_its_pictures_and_the_search_finds_their_words(site: Path) -> None:
    sources = [path.relative_to(ROOT).with_suffix("") for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"))]
    made = {path.relative_to(site).with_suffix("") for path in site.glob("**/*.html")}
    assert {path.parent / path.name.replace("README", "index") for path in sources} <= made
    assert "ContainerCreating" in (site / "search.json").read_text()
    for page in site.glob("**/*.html"):
        for picture in re.findall(r'<(?:img|source)[^>]*(?:src|srcset)="([^"]+)', page.read_text()):
            assert (page.parent / picture).is_file(), (page.name, picture)


@needs_zensical
def test_a_page_has_a_link_to_edit_its_own_source(site: Path) -> None:
    for page, source in (("index", "README.md"), ("docs/faq", "docs/faq.md"), ("SECURITY", "SECURITY.md")):
        assert f'href="https://github.com/owner/name/edit/main/{source}"' in (site / f"{page}.html").read_text()


@needs_zensical
def test_a_dead_link_ends_the_build(tmp_path: Path) -> None:
    page = pages(tmp_path) / "docs/faq.md"
    page.write_text(f"{page.read_text()}\n[x](nowhere.md)\n\n[x](install.md#no-such-heading)\n")
    done = build(tmp_path)
    assert done.returncode != 0
    said = re.sub(r"\x1b\[[\d;]*m", "", done.stderr)
    for link in ("[x](nowhere.md)", "[x](install.md#no-such-heading)"):
        assert link in said


@needs_zensical
@pytest.mark.skipif(not BROWSER, reason="needs a browser: install Debian's package chromium")
def test_no_table_and_no_code_is_cut_and_no_picture_is_tiny_on_a_desktop_and_on_a_telephone(
    site: Path, tmp_path: Path
) -> None:
    frames = [
        f'<iframe id="{page}" src="{site / page}.html" height="900" frameborder="0"></iframe>' for page in LOOKED_AT
    ]
    script = f"<script>const WIDTHS = {WIDTHS};{LOOK}</script>"
    (tmp_path / "look.html").write_text(f"{script}<body>{''.join(frames)}</body>")
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--allow-file-access-from-files"]
    options += [f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=5000", "--dump-dom"]
    command = [str(BROWSER), *options, f"file://{tmp_path / 'look.html'}"]
    printed = subprocess.run(command, capture_output=True, text=True, timeout=120).stdout
    found = json.loads(unescape(re.findall(r"<body>(\[.*\])</body>", printed, re.S)[0]))
    assert [(look["page"], look["width"]) for look in found] == [
        (page, width) for width in WIDTHS for page in LOOKED_AT
    ]
    assert all(look["parts"] > 5 for look in found), found
    assert [look for look in found if look["cut"] or look["wider"] > 0 or look["tiny"]] == []


def test_what_the_site_needs_is_pinned_and_agrees_with_what_the_tests_need() -> None:
    (wanted,) = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["site"]
    pins = {}
    for name in ("requirements-command.txt", "requirements.txt", "requirements-etcd3.txt", "requirements-site.txt"):
        for line in (ROOT / name).read_text().splitlines():
            package, sign, version = line.removesuffix(" \\").partition("==")
            if sign:
                assert pins.setdefault(package, version) == version, f"{package} in {name}"
    assert pins["zensical"] == wanted.partition("==")[2]


@pytest.mark.skipif(bool(unusable()), reason=unusable())
def test_the_pictures_are_what_the_commands_print() -> None:
    for name, width, console in screens.screens():
        drawn = (screens.FOLDER / f"{name}-{width}.txt").read_text()
        assert screens.shown(console) == drawn, f"{name} at {width} columns: draw it again with `make screens`"
        assert max(map(len, drawn.splitlines())) <= width
        for theme in screens.THEMES:
            assert (screens.FOLDER / f"{name}-{width}-{theme}.svg").is_file()
