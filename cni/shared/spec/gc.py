"""The runtime's list of valid attachments in a GC call (SPEC.md, section 2, "GC")."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cni.shared.spec.errors import InvalidConfig
from cni.shared.spec.request import Attachment, member

if TYPE_CHECKING:
    from cni.shared.spec.request import Request

VALID_ATTACHMENTS = "cni.dev/valid-attachments"
NOTHING_LISTED = (
    f'GC without the key "{VALID_ATTACHMENTS}" collects nothing: it does not say which attachments are in use'
)


def valid_attachments(request: Request) -> set[Attachment] | None:
    """The attachments that GC must keep. None when the key is absent, so that nothing may be collected.

    The value null means an empty list: runtimes written in Go send null for a network without attachments.
    Raises InvalidConfig when the value is no list of attachments.
    """
    listed = request.member(VALID_ATTACHMENTS)
    if listed is None:
        return set() if any(key.lower() == VALID_ATTACHMENTS for key in request.config) else None
    if not isinstance(listed, list):
        raise InvalidConfig(f'"{VALID_ATTACHMENTS}" is not a list: nothing is collected')
    found = set()
    for entry in listed:
        container_id = member(entry, "containerID") if isinstance(entry, dict) else None
        ifname = member(entry, "ifname") if isinstance(entry, dict) else None
        if not isinstance(container_id, str) or not isinstance(ifname, str):
            raise InvalidConfig(
                f'an entry of "{VALID_ATTACHMENTS}" is not {{"containerID": string, "ifname": string}}: nothing is collected'
            )
        found.add(Attachment(request.attachment.network, container_id, ifname))
    return found
