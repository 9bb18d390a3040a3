"""Whether the addresses of an attachment may be in use: what DEL, GC, the agent and reclaim alike go by.

They may while its namespace is there: at its path, or kept by a process, a mount or an open descriptor; while its link is
seen in a namespace that is not found; and after a DEL that could not end it, until a later call does.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from cni import plugins, sandbox
from cni.attachment import UNENDED, Book
from cni.cli.at_work import LINK_PART
from cni.kernel import netns, node
from cni.kernel.links import Rtnl
from cni.spec.request import Attachment


def is_there(paths: Iterable[str], users: Iterable[Attachment], book: Book) -> bool:
    """Whether a namespace is at one of `paths`, or the links of `users` may be in use without it. OSError.

    In a container, processes and links of the host are not seen, and of mounts those alone that are passed on to it.
    """
    if any(netns.exists(path) for path in paths):
        return True
    links = [book.read(user, LINK_PART) or {} for user in users]
    return any(_is_in_use(link) for link in links if link.get("sandbox") and link.get("bootID") == node.boot_id())


def _is_in_use(link: dict[str, Any]) -> bool:
    """Whether the link that the record tells of may be in use although the path of its namespace is gone. OSError."""
    if UNENDED in link:
        return True
    there = sandbox.kept(link["sandbox"])
    if there:
        there.close()
        return True
    plugin = plugins.named(link["plugin"])
    host = Rtnl()
    try:
        return plugin.lingers(plugin.load(link["link"]), host)
    finally:
        host.close()


def names_of(path: str) -> set[str]:
    """The names of a namespace's path: /var/run is /run, if not where it is mounted here."""
    return {path, path.removeprefix("/var")}
