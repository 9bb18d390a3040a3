"""A device of the host that goes into a sandbox as a whole and comes back as it was.

    holder   the attachment that has the device; one whose sandbox died without a DEL gives it back first
    fit      why the device cannot be moved, as the error to raise                            pure
    move     one message moves, names and marks the device
    remove   back to the host: name, alias, alternative names, MTU, MAC, up, addresses, routes

The device's former state stands in the record before it is touched. A device is known again by its PCI path or
permanent MAC, never by its name alone; a virtual one, which has neither, by kind and alias. The alias in the sandbox
is the name on the host, which is the mark that Go's host-device uses too, so either can give back what the other took.

Sources: net/core/dev.c (__dev_change_net_namespace: a move closes the device and drops its addresses and routes;
default_device_exit_net: a dying namespace returns a physical device to the initial one under the name that it had in
the pod, and destroys a virtual one).
"""

from __future__ import annotations

import errno
import posix

from cni.kernel import node
from cni.kernel.netlink import KernelError
from cni.plugins import devices
from cni.spec.errors import InvalidConfig, InvalidEnvironment, KernelRefused, TryAgainLater, Unrestored

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any

    from cni.attachment import Book
    from cni.kernel.links import Link, Rtnl
    from cni.kernel.netns import Namespace
    from cni.log import Log
    from cni.spec.request import Attachment, Request

PART = "link"  # of the attachment records
_RETURNED = "returned"
_REFUSED = "refused"  # an ADD could not give back all of the device's state: the next one takes the device as it is
USERSPACE_DRIVERS = ("vfio-pci", "uio_pci_generic", "igb_uio")


class Plan:
    """The move. `device` is the state to restore ({} for a function that a userspace driver holds).

    `returned`: whoever took the device next has restored it, since this one's sandbox had died; it is no longer ours.
    """

    __slots__ = ("device", "mtu", "name", "pci", "restores_state", "returned")

    def __init__(self, document: dict[str, Any]) -> None:
        self.name: str = document["name"]
        self.mtu: int = document["mtu"]
        self.pci: str = document["pci"]
        self.device: dict[str, Any] = document["device"]
        self.restores_state: bool = document["restoresState"]
        self.returned: bool = document.get(_RETURNED, False)

    def document(self) -> dict[str, Any]:
        """The plan as the record keeps it."""
        return {
            "name": self.name,
            "mtu": self.mtu,
            "pci": self.pci,
            "device": self.device,
            "restoresState": self.restores_state,
            _RETURNED: self.returned,
        }


def permit(device: Link | None, pci: str) -> None:
    """InvalidConfig when the node does not allow networks the device."""
    parent = device.parent_device if device and device.parent_bus == "pci" else ""
    names = [name for name in (device.name if device else "", pci or parent) if name]
    from cni import policy  # a DEL asks nobody

    policy.current().permit("devices", f'device "{" ".join(names)}"', names)


def recorded(own: Attachment | None, book: Book) -> Iterator[tuple[Attachment, dict[str, Any]]]:
    """The attachments other than `own`, with their records, that have a device, or have not given it back whole."""
    boot = node.boot_id()
    for attachment, _, record in book.all(PART):
        link = record["link"]
        if link.get("device") is None or link.get(_RETURNED) or attachment == own or record["bootID"] != boot:
            continue
        yield attachment, record


def holders(
    own: Attachment | None, device: Link | None, is_meant: Callable[[dict[str, Any]], bool], book: Book
) -> Iterator[tuple[Attachment, dict[str, Any]]]:
    """Of those the ones that have this device.

    While it is not on the host (`device` is None), `is_meant` tells by the `link` of a record whether it is this one.
    IoFailure when a record of a newer format speaks of the device.
    """
    for attachment, record in recorded(own, book):
        link = record["link"]
        former = link["device"]
        if device:
            if former and devices.known_again(former, [device], marked=True):
                yield attachment, record
        elif is_meant(link):
            yield attachment, record
    if device:
        book.refuse_newer(device.parent_device, device.mac)


def reclaim(attachment: Attachment, record: dict[str, Any], host: Rtnl, book: Book) -> None:
    """Give the device of an attachment back to the host, as its DEL would, and write down that this was done.

    For one that is locked and whose sandbox died without a DEL. Its DEL may still come, when another has the device:
    it then finds that there is nothing to give back (sriov-cni #219). Unrestored once, when a part is refused that may
    succeed later.
    """
    from cni import plugins
    from cni.log import Log

    plugin = plugins.named(record["plugin"])
    log = book.log or Log(str(attachment))
    try:
        plugin.remove(plugin.load(record["link"]), host, None, log)
    except Unrestored as fault:
        if record["link"].get(_REFUSED):
            log.warning(f"{fault}; it is not tried again")
        else:
            book.write(attachment, PART, {**record, "link": {**record["link"], _REFUSED: True}})
            raise
    book.write(attachment, PART, {**record, "link": {**record["link"], _RETURNED: True}})


def look(device: Link, links: Sequence[Link], host: Rtnl, book: Book) -> tuple[dict[str, Any], str]:
    """The state of a device of the host, and which other link it is tied to, or "". The log says what it will lose."""
    from cni.plugins import hoststate  # a DEL reads none

    seen = hoststate.look(device, links, host)
    if seen.lost and book.log:
        book.log.warning(
            f'device "{device.name}" will come back without what cannot be saved: {"; ".join(seen.lost)}; remove it before,'
            " or set it again after the DEL"
        )
    return seen.state, seen.tied


def fit(
    selected: str, device: Link, reason: str, tied: str, taken: Link | None, mtu: int, request: Request
) -> InvalidConfig | InvalidEnvironment | None:
    """Why `device` cannot go to the sandbox of `request`, or None.

    `selected` is the key and value that name it, `reason` why the node needs it, `tied` which other link does, `taken` a
    link that has the ifname there, `mtu` the one that it shall have (0: its own).
    """
    if reason:
        return InvalidConfig(
            f"{selected} is refused: {reason}, and moving it would cut the node off; select another device"
        )
    if tied:
        return InvalidConfig(f"{selected} is refused: {tied}")
    if taken is not None:
        return InvalidEnvironment(
            f'CNI_IFNAME "{request.attachment.ifname}" exists already in the sandbox {request.netns}: choose another ifname, or remove that link'
        )
    if mtu and not device.min_mtu <= mtu <= (device.max_mtu or 65535):
        return InvalidConfig(
            f'mtu {mtu} is not one that device "{device.name}" can have: give {device.min_mtu} to {device.max_mtu or 65535}'
        )
    return None


def held_by(selected: str, holder: Attachment) -> TryAgainLater:
    """The refusal of a device that another attachment has; on the host too: what it has there is not what it must get back."""
    return TryAgainLater(
        f"{selected} is in use by container {holder.container_id} as {holder.ifname} (network"
        f" {holder.network}): wait until that is deleted, or select another device"
    )


def move(planned: Plan, host: Rtnl, box: Rtnl, sandbox: Namespace) -> Link | None:
    """Move, name and mark the device in one message; None when there is no netdev to move."""
    if not planned.device:
        return None
    device = planned.device
    mtu = planned.mtu if planned.mtu != device["mtu"] else 0
    try:
        if planned.name in device["altnames"]:  # a link cannot have one name twice
            host.remove_altname(device["index"], planned.name)
        with_names_free(
            host,
            box,
            device["index"],
            lambda: host.change_link(
                device["index"], netns_fd=sandbox.fd, name=planned.name, alias=device["name"], mtu=mtu
            ),
        )
    except KernelError as fault:
        refusal = _refused_move(planned, fault)
        if fault.errno == errno.ENODEV:
            planned.device = {}  # another attachment has it: there is nothing to bring back
        raise refusal from None
    link = box.link(name=planned.name)
    if link is None:
        raise KernelRefused(
            f'device "{device["name"]}" vanished as it was moved: was the sandbox or the device removed?'
        )
    saved = device.get("kernel")
    if saved and any(len(route["legs"]) > 1 for route in saved["routes"]):
        from cni.plugins import restore as restoration

        restoration.keep_others(saved, device["index"], host)
    return link


def _refused_move(planned: Plan, fault: KernelError) -> KernelRefused | TryAgainLater:
    name = planned.device["name"]
    if fault.errno == errno.ENODEV:
        return TryAgainLater(
            f'device "{name}" is gone from the host: another attachment may have taken it; retry', str(fault)
        )
    if fault.errno == errno.EEXIST:
        return KernelRefused(
            f'a name of device "{name}" is taken in the sandbox: remove the link or alternative name there', str(fault)
        )
    if fault.errno == errno.EINVAL:
        return KernelRefused(
            f'device "{name}" cannot change its network namespace (its driver marks it as local): select another device',
            str(fault),
        )
    return KernelRefused(f'the kernel refused to move device "{name}": {fault.strerror}', str(fault))


def refused_up(planned: Plan, fault: KernelError) -> str:
    """Why the kernel did not set the device up."""
    return f'device "{planned.device["name"]}" cannot be set up in the sandbox: {fault.strerror}; see the kernel log for its driver'


def remove(planned: Plan, host: Rtnl, box: Rtnl | None, log: Log) -> None:
    """Bring the device back to the host and restore what it had, from whatever point an earlier call reached."""
    device = bring_back(planned, host, box, log)
    if device:
        restore(planned, device, host, log)


def bring_back(planned: Plan, host: Rtnl, box: Rtnl | None, log: Log) -> Link | None:
    """Bring the device back to the host, if it is not there yet; None when it vanished, or there was no netdev to move.

    Lingers while the device exists, and is neither there nor in the sandbox.
    """
    if not planned.device or planned.returned:
        return None
    moved = _in_sandbox(planned, box) if box else None
    if moved and box:
        _move_back(planned, moved, host, box)
    device = devices.known_again(planned.device, host.links(), marked=True)
    if device is None:
        from cni.plugins import away  # a device is nearly always on the host by now

        away.refuse(planned, host, box)
        log.warning(
            f'device "{planned.device["name"]}" is neither in the sandbox nor on the host: it vanished, or another attachment has it'
        )
    return device


def present(planned: Plan, box: Rtnl) -> Link | None:
    """The device in the sandbox, under whatever name; None when it is not there, or is another attachment's by now."""
    return _in_sandbox(planned, box) if planned.device and not planned.returned else None


def recognises(planned: Plan, box: Rtnl) -> bool:
    """Whether the device is among the links of `box`."""
    return present(planned, box) is not None


def lingers(planned: Plan, host: Rtnl) -> bool:
    """Whether the device is in a network namespace that the host's knows, with the addresses that it was given."""
    if not planned.device or planned.returned:
        return False
    from cni.plugins import away

    return away.in_namespace_of(planned, host) and not away.is_of_another(planned)


def _in_sandbox(planned: Plan, box: Rtnl) -> Link | None:
    return devices.known_again(planned.device, box.links(), marked=True, away=True)


def _move_back(planned: Plan, link: Link, host: Rtnl, box: Rtnl) -> None:
    name = planned.device["name"]
    if host.link(name=name) is not None:
        raise TryAgainLater(
            f'device "{name}" cannot return to the host: another link has that name there; rename it (ip link set {name} name ...)'
            " and DEL again"
        )
    _name_again(link, name, box)
    home = host.namespace()  # the thread may be in the sandbox still, when what follows a failure to leave it
    try:
        with_names_free(box, host, link.index, lambda: box.change_link(link.index, netns_fd=home, name=name))
    except KernelError as fault:
        raise KernelRefused(
            f'device "{name}" cannot be moved back to the host: {fault.strerror}; DEL again', str(fault)
        ) from None
    finally:
        posix.close(home)


def _name_again(link: Link, name: str, box: Rtnl) -> None:
    """Give the device its name before it is on the host, where udev and others would act upon the pod's name.

    Where the sandbox has a link of that name already, the move itself changes the name.
    """
    if link.name == name:
        return
    try:
        box.change_link(link.index, up=False)  # before Linux 6.2 a link that is up keeps its name
        if name in link.altnames:
            box.remove_altname(link.index, name)
        box.change_link(link.index, name=name)
    except KernelError:
        pass


def with_names_free(here: Rtnl, there: Rtnl, index: int, move: Callable[[], None]) -> None:
    """Call `move`, which moves the link `index` from `here` to `there`; KernelError.

    When a name is taken there, once more without the alternative names that others have there: a move takes all names
    along or fails. The record keeps them, so they come back with the device where they are free.
    """
    try:
        move()
    except KernelError as fault:
        link = here.link(index=index) if fault.errno == errno.EEXIST else None
        taken = [name for name in link.altnames if there.link(name=name)] if link else []
        if not taken:
            raise
        for name in taken:
            here.remove_altname(index, name)
        move()


def restore(planned: Plan, link: Link, host: Rtnl, log: Log) -> None:
    """Give the device, which is on the host, what the record says that it had; what it has already is left alone.

    TryAgainLater when another link has its name. Unrestored when a later call can give back what is missing.
    """
    former = planned.device
    name = former["name"]
    try:
        if link.name != name:
            other = host.link(name=name)
            if other is not None and other.index == link.index:  # udev may have made the former name an alternative
                host.remove_altname(link.index, name)
            elif other is not None:
                raise TryAgainLater(
                    f'device "{link.name}" cannot get its name "{name}" back: another link has it; rename that one and DEL again'
                )
            host.change_link(link.index, up=False)
            host.change_link(link.index, name=name)
            link = host.link(index=link.index) or link
        if not planned.restores_state:
            if link.alias:
                host.change_link(link.index, alias="")
            return
    except KernelError as fault:
        raise KernelRefused(
            f'device "{name}" is on the host, but cannot get its name: {fault.strerror}; DEL again', str(fault)
        ) from None
    from cni.plugins import restore as restoration  # an ADD that succeeds restores nothing

    restoration.restore(former, link, host, log)


def unmoved(planned: Plan) -> tuple[str, int] | None:
    """Of a function that a userspace driver holds its MAC and MTU, which are not known here."""
    return None if planned.device else ("", 0)


def differences(planned: Plan, link: Link | None) -> list[str]:
    """What of the device is not as planned."""
    if link and planned.device and not devices.is_same(planned.device, link, marked=True):
        return [f'"{link.name}" is not the device "{planned.device["name"]}" of the host']
    return []


def carrier(planned: Plan) -> tuple[str, bool]:
    """The device itself, while it is on the host."""
    return planned.device.get("name", ""), False
