"""What mode passthru takes from the node: the kernel hands all frames of the netdev to the link (macvlan_handle_frame,
drivers/net/macvlan.c), and gives the netdev each MAC that the link gets. Loaded for that mode alone."""

from __future__ import annotations

from cni.kernel import addresses
from cni.plugins import uplink

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cni.kernel.links import Link, Rtnl
    from cni.log import Log


def needed(device: Link, host: Rtnl, log: Log | None) -> str:
    """Why the node cannot do without the netdev `device`, or "". The log tells which addresses it does without."""
    reason = uplink.needed(device, host.links(), uplink.default_routes(host))
    held = [a.text for a in addresses.list_of(host, device.index) if a.scope != addresses.LINK_SCOPE]
    if held and log and not reason:
        log.warning(
            f'mode passthru: the node cannot use its addresses {", ".join(held)} on "{device.name}" until the attachment ends'
        )
    return reason
