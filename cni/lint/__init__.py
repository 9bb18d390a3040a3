"""The lint: the faults of networks in files, as data.

`lint` reads files and directories, `lint_text` a text. All faults of a document are found at once, those of its syntax
one by one.

    file       a file or text by its documents, which cni.documents reads
    manifest   a NAD around its network   network    a conflist, a single configuration, a chain
    plugin     one plugin, by its own table of keys and checks     addresses   its `ipam` block, by that of whereabouts
"""

from __future__ import annotations

from cni.documents.diagnostic import ERROR, WARNING, Diagnostic
from cni.documents.reader import STDIN
from cni.lint.addresses import Named
from cni.lint.file import lint, lint_text

__all__ = ["ERROR", "STDIN", "WARNING", "Diagnostic", "Named", "lint", "lint_text"]
