"""All of a node that whoever comes next can meet, as text: its files, locks, and what rtnetlink shows of its namespaces.

Two cases with the same lines go on in the same way. Times and the kernel's numbers of namespaces are left out."""

import time
from collections.abc import Mapping, Sequence

from tests.faults.filestate import Files
from tests.faults.kernelstate import Namespace, locks
from tests.node import STATE, Node
from tests.view import View

_OWN = ("/var/lib", "/var/log", "/run", "/etc/cni")  # what a node has for itself


class Whole:
    """Reads `node`, in which nothing is older than this object."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._files = Files(time.time_ns())
        self._namespaces: dict[str, Namespace] = {}

    def keep(self, views: Mapping[str, View]) -> None:
        """From now on these namespaces are there until the end."""
        self._namespaces = {name: Namespace(view) for name, view in views.items()}

    def close(self) -> None:
        for namespace in self._namespaces.values():
            namespace.close()
        self._namespaces.clear()

    def of(self, name: str) -> list[str]:
        """The lines of one of the namespaces."""
        return self._namespaces[name].lines()

    def lines(self, victim: View | None, elsewhere: Sequence[tuple[str, bytes]] = ()) -> list[str]:
        """All lines; `victim` is the view of a namespace that is not there in every case; `elsewhere` are names and
        texts of what is kept outside of the node."""
        namespaces = self._namespaces | ({"victim": Namespace(victim)} if victim else {})
        try:
            known = {(n.inode, n.cookie): name for name, n in namespaces.items()}
            tops = [path for path in map(self._node.path, _OWN) if path.exists()]
            found = self._files.lines(tops, known, elsewhere)
            for name, namespace in namespaces.items():
                found += [f"{name} {line}" for line in namespace.lines()]
        finally:
            if victim:
                namespaces["victim"].close()
        return found + self.locks()

    def locks(self) -> list[str]:
        """The locks that somebody holds on a file of the state directory."""
        paths = {}
        for path in self._node.path(STATE).rglob("*"):
            status = path.lstat()
            paths[status.st_dev, status.st_ino] = path.name
        return locks(paths)
