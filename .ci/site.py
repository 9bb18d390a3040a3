"""A hook of mkdocs: the pages that lie beside docs/, README.md above all, are pages of the site too."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
PAGES = {path.name: "index.md" if path.name == "README.md" else path.name for path in ROOT.glob("*.md")}


def on_files(files: Any, config: Any) -> Any:
    """Add them, with links as they are inside of docs/."""
    for source, page in PAGES.items():
        text = re.sub(r'((?:\]\(|src="|srcset="))docs/', r"\1", (ROOT / source).read_text())
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links out of docs/ lead to these pages."""
    depth = page.file.src_uri.count("/")
    for source, target in PAGES.items():
        markdown = markdown.replace(f"]({'../' * (depth + 1)}{source}", f"]({'../' * depth}{target}")
    return markdown
