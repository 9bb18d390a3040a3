"""Write the pages as a site: `make site` calls it. Usage: .ci/site.py, in the project's directory."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

PAGES = Path("build/pages")


def main() -> int:
    """Copy the pages as they lie in the repository, so that links between them and to their sources hold, and build."""
    shutil.rmtree(PAGES, ignore_errors=True)
    shutil.copytree("docs", PAGES / "docs", ignore=shutil.ignore_patterns("*.txt"))
    for page in [*Path().glob("*.md"), Path(".ci/site.css")]:
        shutil.copy(page, PAGES)
    source = tomllib.loads(Path("pyproject.toml").read_text())["project"].get("urls", {}).get("Source")
    named = {"RAILCNI_SOURCE": source} if source else {}
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean"]
    return subprocess.run(command, env=os.environ | named).returncode


if __name__ == "__main__":
    sys.exit(main())
