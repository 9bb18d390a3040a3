"""Whether the namespace that an attachment's links are in is there still, so that its addresses may be in use."""

from __future__ import annotations

from collections.abc import Iterable

from cni.attachment import Book
from cni.cli.at_work import LINK_PART
from cni.kernel import netns, node
from cni.sandbox import Sandbox
from cni.spec.request import Attachment


def is_there(paths: Iterable[str], users: Iterable[Attachment], book: Book) -> bool:
    """Whether it is there at one of `paths`, or a process or another mount keeps that of a link of `users`. OSError.

    In a container, processes of the host are not seen, and of mounts those alone that are passed on to it.
    """
    if any(netns.exists(path) for path in paths):
        return True
    links = [book.read(user, LINK_PART) or {} for user in users]
    return any(_is_kept(link) for link in links if link.get("sandbox") and link.get("bootID") == node.boot_id())


def _is_kept(link: dict[str, dict[str, int]]) -> bool:
    """Whether the namespace that the link plugin recorded lives on without its path. OSError."""
    identity = link["sandbox"]
    found = netns.found_again(identity["device"], identity["inode"])
    if found is None:
        return False
    with Sandbox(found) as there:
        return there.identity() == identity  # a later one may have its inode


def names_of(path: str) -> set[str]:
    """The names of a namespace's path: /var/run is /run, if not where it is mounted here."""
    return {path, path.removeprefix("/var")}
