"""What GC is told: the attachments that the runtime still knows (SPEC.md, section 2, "GC")."""

from __future__ import annotations

from cni.spec.errors import InvalidConfig
from cni.spec.request import Attachment, member

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cni.spec.request import Request

VALID_ATTACHMENTS = "cni.dev/valid-attachments"


def valid_attachments(request: Request) -> set[Attachment]:
    """The attachments that GC must keep; InvalidConfig when the list is absent: then nothing may be collected."""
    listed = member(request.config, VALID_ATTACHMENTS)
    if not isinstance(listed, list):
        raise InvalidConfig(
            f'GC needs the list "{VALID_ATTACHMENTS}" (empty when nothing is attached): without it nothing is collected'
        )
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
