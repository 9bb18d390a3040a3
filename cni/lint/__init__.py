"""The lint: the faults of networks in files, as data.

`lint` reads files and directories, `lint_text` a text. All faults of a document are found at once, but only the first
of its syntax errors. Modules:

    file       each document of a file or text, as cni.documents reads it
    network    a conflist, a single configuration, a chain, a NAD
    plugin     one plugin, by the keys and checks of the plugin itself
    addresses  the `ipam` block of a plugin
    schema     the JSON Schema of the plugins' configurations
"""

from __future__ import annotations

from cni.documents.diagnostic import ERROR, WARNING, Diagnostic
from cni.documents.reader import STDIN
from cni.lint.file import lint, lint_text

__all__ = ["ERROR", "STDIN", "WARNING", "Diagnostic", "lint", "lint_text"]
