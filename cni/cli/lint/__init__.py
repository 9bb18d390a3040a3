"""The lint: what is wrong with networks in files, as data.

`lint` reads files and directories, `lint_text` a text. All faults of a file are found at once: JSON and YAML are read
past what is wrong with their syntax.

    jsontext   JSON read past its faults                          tree      what it says, with places
    manifest   a NAD around its network                           network   a conflist, a single configuration, a chain
    plugin     one plugin, by its own table of keys and checks    addresses its `ipam` block, by that of whereabouts
"""

from __future__ import annotations

from cni.cli.lint.addresses import Named
from cni.cli.lint.file import STDIN, lint, lint_text
from cni.cli.lint.finding import ERROR, WARNING, Finding

__all__ = ["ERROR", "STDIN", "WARNING", "Finding", "Named", "lint", "lint_text"]
