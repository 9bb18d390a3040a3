"""The link by which an administrator finds the command: /usr/local/bin/railcni.

It leads to the command of the version in use, or to that of the checkout, whose libraries are not installed. A file of
another's is left alone. A node without the folder, such as one that a container installs on, goes without.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from cni.library.installation import files
from cni.library.installation.below import below
from cni.library.installation.change import Folder, Step
from cni.library.installation.content import Content
from cni.library.installation.layout import BUNDLE, CURRENT, PROGRAMS

NAME = "railcni"


class CommandLink:
    """The link in `directory` of the host below `root`. Without `wanted`: whichever this installation has made."""

    def __init__(self, folder: Folder, root: str, directory: str, wanted: Content | None = None) -> None:
        self._shown = f"{os.path.abspath(directory)}/{NAME}"
        self._directory = below(root, os.path.abspath(directory))
        self._path = f"{self._directory}/{NAME}"
        installed = f"{folder.shown}/{BUNDLE}/{CURRENT}/{PROGRAMS}/{NAME}"
        own = f"{wanted.top}/{PROGRAMS}/{NAME}" if wanted and wanted.interpreter else ""
        self._target = own or installed
        self._installed = installed

    def __str__(self) -> str:
        return self._shown if self._leads_to == self._target else self._target

    @property
    def _leads_to(self) -> str:
        try:
            return os.readlink(self._path)
        except OSError:
            return ""

    def made(self) -> Iterator[Step]:
        """The step to make it, unless it is there, has no place, or another's file has the name."""
        leads_to = self._leads_to
        is_free = not os.path.lexists(self._path) or leads_to.endswith(f"/{PROGRAMS}/{NAME}")
        if leads_to != self._target and is_free and os.access(self._directory, os.W_OK):
            yield Step(f"link {self._shown} to {self._target}", self._make)

    def _make(self) -> None:
        files.put(self._path, f"{self._directory}/.{NAME}.new", lambda path: os.symlink(self._target, path))

    def removed(self) -> Iterator[Step]:
        """The step to remove it, where it leads into this installation or to a checkout."""
        leads_to = self._leads_to
        if leads_to and (leads_to == self._installed or os.path.isfile(f"{os.path.dirname(leads_to)}/command.in")):
            yield Step(f"remove the link {self._shown}", lambda: files.remove(self._path))
