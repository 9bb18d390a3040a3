"""railcni's CNI side: the protocol, the kernel, the link plugins and the command."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

VERSION = "0.1.0"  # of railcni


def load(module: str, name: str = "") -> Any:
    """Import `module` when a call needs it. Returns the module or, if `name` is given, its member of that name."""
    found = sys.modules.get(module) or import_module(module)
    return getattr(found, name) if name else found
