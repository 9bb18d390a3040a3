"""The move of a device from the host into a sandbox, and back to the host in its former state.

The former state of the device is recorded before the device is changed. `devices.is_same` recognises the device later,
by its parent device, its permanent MAC or other signs, but never only by its name. In the sandbox the device has a
mark: its alias is its name on the host. Go's host-device sets the same mark, so each plugin can return devices of both.

Sources: net/core/dev.c (__dev_change_net_namespace: a move closes the device and drops its addresses and routes;
default_device_exit_net: a dying namespace returns a physical device to the initial namespace under its name in the pod,
and destroys a virtual device).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from cni.link.plugins import uplink
from cni.link.plugins.common import Facts
from cni.link.plugins.host_device import devices, hoststate
from cni.link.plugins.host_device.devices import REFUSED, RETURNED, MovePlan, among, recorded
from cni.shared import policy
from cni.shared.kernel import addresses, node_routes, sysfs
from cni.shared.kernel import sandbox as sandboxes
from cni.shared.kernel.links import LEAST_MTU, Link, Rtnl
from cni.shared.kernel.netlink import KernelError
from cni.shared.log import Log
from cni.shared.records import LINK, Records
from cni.shared.spec.errors import InvalidConfig, KernelRefused, Lingers, NotAvailable, TryAgainLater, Unrestored
from cni.shared.spec.request import Attachment, Request

if TYPE_CHECKING:
    from cni.link.plugins.base import Named
    from cni.shared.kernel.netns import Namespace

USERSPACE_DRIVERS = ("vfio-pci", "uio_pci_generic", "igb_uio")


class MoveFacts(Facts):
    """The result of a survey: the device, its state, and its driver if the device is a PCI function. `reason` says why
    the node needs the device, "" if it does not. `tied` says why another link needs the device, "" if none does."""

    device: Link | None = None
    driver = reason = tied = ""

    def __init__(self) -> None:
        self.state: dict[str, Any] = {}

    def look(self, device: Link, links: Sequence[Link], host: Rtnl, log: Log, advertised: bool = True) -> None:
        """Read the state of the device and the reasons against a move. If `advertised` is False, a default route that a
        router has advertised on the device is not a reason."""
        bodies = node_routes.all_bodies(host)
        self.reason = uplink.needed(device, links, host, bodies, advertised)
        self.state, self.tied = hoststate.look(device, links, bodies, host, log)


def permit(device: Link | None, pci: str) -> None:
    """Raise InvalidConfig unless the node's policy lists the name of the netdev `device` or its PCI address. `pci` is
    the PCI address of the device; with "", the address of the netdev's parent device is used."""
    parent = device.parent_device if device and device.parent_bus == "pci" else ""
    names = [name for name in (device.name if device else "", pci or parent) if name]
    policy.current().permit("devices", f'device "{" ".join(names)}"', names)


def available(
    device: Link, pci: str, selected: str, links: Sequence[Link], host: Rtnl, mtu: int, advertised: bool = True
) -> Link:
    """Return `device` if networks may take it. Raises NotAvailable when each ADD would refuse the device or `mtu`, or the
    device leaves the host; InvalidConfig when the policy does not allow it.

    If `advertised` is False, a default route that a router has advertised on the device does not count. `selected` has
    the key and the value that name the device, for the message.
    """
    permit(device, pci)
    try:
        reason = uplink.needed(device, links, host, advertised=advertised)
        refuse_unfit(selected, device, reason, hoststate.tied(device, links, host), mtu)
    except InvalidConfig as fault:
        raise NotAvailable(fault.msg) from None
    except KernelError as fault:
        if fault.errno != errno.ENODEV:
            raise
        raise NotAvailable(f"{selected} has just left the host: another attachment may have taken it") from None
    return device


def holders(
    own: Attachment | None, device: Link | None, is_meant: Callable[[dict[str, Any]], bool], records: Records
) -> Iterator[tuple[Attachment, dict[str, Any]]]:
    """Yield (attachment, record) for each attachment other than `own` that has the device.

    If the device is not on the host, `device` is None, and the records are chosen by `is_meant(record["link"])`.
    Raises IoFailure when a record of a newer format mentions the device.
    """
    for attachment, record in recorded(own, records, *(devices.signs_of(device) if device else ())):
        link = record["link"]
        former = link["device"]
        if device:
            if former and devices.known_again(former, [device]):
                yield attachment, record
        elif is_meant(link):
            yield attachment, record
    if device:
        records.refuse_newer(device.parent_device, device.mac)


def holder_of(
    found: Iterable[tuple[Attachment, dict[str, Any]]], request: Request, host: Rtnl, records: Records, named: Named
) -> tuple[Attachment | None, bool]:
    """Return the first attachment in `found` (from `holders`) that still has the device, or None. If the sandbox of an
    attachment ended without a DEL, this call returns the device to the host, and the second result is True."""
    is_back = False
    for attachment, record in found:
        held = records.try_locked(attachment, LINK)
        if held is None:
            return attachment, is_back
        with held:
            if sandboxes.of_record(record, request):
                return attachment, is_back
            try:  # the kernel has returned the device in the state that it had in that sandbox
                _return_device(attachment, record, host, records, named)
            except Lingers:
                return attachment, is_back
        is_back = True
    return None, is_back


def _return_device(attachment: Attachment, record: dict[str, Any], host: Rtnl, records: Records, named: Named) -> None:
    """Return the device of an attachment to the host, as its DEL would, and note this in the record.

    The caller holds the lock of the attachment, whose sandbox ended without a DEL. The DEL may come later, when another
    attachment has the device. The note tells the DEL to leave the device alone (sriov-cni #219). When the kernel
    refuses a part of the state, the first call for a record raises Unrestored, and a second call only logs the refusal.
    """
    plugin = named(record["plugin"])
    try:
        plugin.remove(plugin.load(record["link"]), host, None, records.log)
    except Unrestored as fault:
        if record["link"].get(REFUSED):
            records.log.warning(f"{fault}; it is not tried again")
        else:
            records.write(attachment, LINK, {**record, "link": {**record["link"], REFUSED: True}})
            raise
    records.write(attachment, LINK, {**record, "link": {**record["link"], RETURNED: True}})


def refuse_unfit(selected: str, device: Link, reason: str, tied: str, mtu: int) -> None:
    """Raise InvalidConfig when `device` cannot be moved to a sandbox (pure). `reason` and `tied` are as in MoveFacts.
    `selected` has the key and the value that name the device. `mtu` is the configured MTU; 0 keeps the device's MTU."""
    if reason:
        raise InvalidConfig(cut_off(selected, reason))
    if tied:
        raise InvalidConfig(f"{selected} is refused: {tied}")
    refuse_mtu(mtu, f'device "{device.name}"', device.min_mtu, device.max_mtu)


def cut_off(selected: str, reason: str) -> str:
    """The error message for a device that no network may take, with the reason and the remedy."""
    way_out = policy.current().way_out()
    return f"{selected} is refused: {reason}, and no network may take it: select another device, or {way_out}"


def refuse_mtu(mtu: int, device: str, least: int = LEAST_MTU, most: int = 0) -> None:
    """Raise InvalidConfig unless `mtu` is 0 or from `least` to `most` bytes. `most` 0 means 65535."""
    most = most or 65535
    if mtu and not least <= mtu <= most:
        raise InvalidConfig(f"mtu {mtu} is not one that {device} can have: give {least} to {most}")


def held_by(selected: str, holder: Attachment | str) -> TryAgainLater:
    """The error for a device that another attachment has, or has not yet fully restored on the host. A `holder` of type
    str is the path of the sandbox to which Go's sriov-cni has given the device."""
    if isinstance(holder, str):
        return TryAgainLater(f"{selected} is in use by Go's sriov-cni in sandbox {holder}: wait for its DEL")
    return TryAgainLater(
        f"{selected} is in use by container {holder.container_id} as {holder.ifname} (network"
        f" {holder.network}): wait until that is deleted, or select another device"
    )


def move_in(planned: MovePlan, host: Rtnl, inside: Rtnl, sandbox: Namespace) -> Link | None:
    """Move the device into the sandbox, and set its name and alias, in one netlink message. Returns the link; None if
    the device has no netdev. Raises TryAgainLater if the device has left the host, KernelRefused for other refusals."""
    if not planned.device:
        return None
    device = planned.device
    mtu = planned.mtu if planned.mtu != device["mtu"] else 0
    try:
        if planned.name in device["altnames"]:  # a link cannot have one name twice
            host.remove_altname(device["index"], planned.name)
        with_names_free(
            host,
            inside,
            device["index"],
            lambda: host.change_link(
                device["index"], netns_fd=sandbox.fd, name=planned.name, alias=device["name"], mtu=mtu
            ),
        )
    except KernelError as fault:
        if mtu and fault.errno in (errno.EINVAL, errno.ERANGE) and host.link(index=device["index"]) is None:
            raise InvalidConfig(  # the kernel sets the MTU after the move
                f'mtu {mtu} is not one that device "{device["name"]}" can have ({fault.strerror}): lower it, such as to the MTU of the'
                " link below the device",
                str(fault),
            ) from None
        refusal = _refused_move(planned, fault)
        if fault.errno == errno.ENODEV:
            planned.device = {}  # another attachment has the device, so this attachment has nothing to bring back
        raise refusal from None
    link = inside.link(name=planned.name)
    if link is None:
        raise KernelRefused(
            f'device "{device["name"]}" vanished as it was moved: was the sandbox or the device removed?'
        )
    saved = device.get("kernel")
    if saved and any(len(route["legs"]) > 1 for route in saved["routes"]):
        hoststate.keep_others(saved, device["index"], host)
    return link


def _refused_move(planned: MovePlan, fault: KernelError) -> KernelRefused | TryAgainLater:
    name = planned.device["name"]
    if fault.errno == errno.ENODEV:
        return TryAgainLater(
            f'device "{name}" is gone from the host: another attachment may have taken it; retry', str(fault)
        )
    words = {
        errno.EEXIST: f'a name of device "{name}" is taken in the sandbox: remove the link or alternative name there',
        errno.EINVAL: f'device "{name}" cannot change its network namespace (its driver marks it as local): select another device',
    }.get(fault.errno or 0, f'the kernel refused to move device "{name}": {fault.strerror}')
    return KernelRefused(words, str(fault))


def refused_up(planned: MovePlan, fault: KernelError) -> str:
    """The error message for `fault`, the kernel's refusal to set the device up."""
    remedy = "see the kernel log for its driver"
    if fault.errno == errno.ENETDOWN and planned.device["lower"]:  # a VLAN or the like
        remedy = "set the link below it up"
    return f'device "{planned.device["name"]}" cannot be set up in the sandbox: {fault.strerror}; {remedy}'


def remove(planned: MovePlan, host: Rtnl, inside: Rtnl | None, log: Log) -> None:
    """Return the device to the host and restore its state. A repeated call continues the first. Raises the errors of
    `move_out` and of `restore.restore`."""
    device = move_out(planned, host, inside, log)
    if device:
        from cni.link.plugins.host_device import restore  # an ADD that succeeds restores nothing

        restore.restore(planned, device, host, log)


def move_out(planned: MovePlan, host: Rtnl, inside: Rtnl | None, log: Log) -> Link | None:
    """Move the device to the host, unless it is there already. Returns its link; None if the device is gone or had no
    netdev. Raises Lingers while the device is in a namespace other than the sandbox and the host's."""
    if not planned.device or planned.returned:
        return None
    moved = among(planned, inside, away=True) if inside else None
    if moved and inside:
        _move_back(planned, moved, host, inside)
    device, former = among(planned, host), planned.device
    if device and not moved and device.index != former["index"] and device.alias != former["name"]:
        log.warning(f'device "{former["name"]}" has vanished: "{device.name}", which has its MAC, keeps its own state')
        return None
    if device is None:
        _refuse_missing(planned, host, inside)
        log.warning(
            f'device "{planned.device["name"]}" is neither in the sandbox nor on the host: it vanished, or another attachment has it'
        )
    elif inside and (cookie := inside.namespace_cookie()) and cookie == host.namespace_cookie():
        addresses.clear(host, device.index)  # without a move: the sandbox is the host's (CNI_NETNS_OVERRIDE)
    return device


def lingers(planned: MovePlan, host: Rtnl) -> bool:
    """Whether the device is in another network namespace, where it may still answer for the attachment's addresses.
    Only namespaces that have an id (nsid) in the host's namespace are searched."""
    is_away = planned.device and not planned.returned
    return bool(is_away and _in_namespace_of(planned, host) and not _is_of_another(planned))


def _refuse_missing(planned: MovePlan, host: Rtnl, inside: Rtnl | None) -> None:
    """Raise Lingers if the device may be in another namespace, and no other attachment has it. The caller has found the
    device neither in its sandbox `inside` nor on the host.

    A hardware device has a netdev in some network namespace as long as its directory in sysfs has the subdirectory
    `net` (cleanup_glue_dir, drivers/base/core.c). A virtual device is destroyed with its namespace. Until then the host
    can list the links of that namespace, because a move gives the new namespace an id in the host's (peernet2id_alloc
    in __dev_change_net_namespace, net/core/dev.c, since Linux 4.15).

    A successor (the new netdev of a rebound driver or of a recreated VF) shows that the former netdev is gone.
    """
    if inside:
        _refuse_on_another(planned, inside)
    former = planned.device
    bus, parent = ("pci", planned.pci) if planned.pci else (former["bus"], former["parent"])
    if parent:
        successors = [name for name in sysfs.netdevs_of(bus, parent) if host.link(name=name)]
        exists = sysfs.has_netdev(bus, parent) and not (successors and _is_only(former["name"] in successors, parent))
    else:
        exists = _in_namespace_of(planned, host, inside) or (inside is not None and _in_namespace_of(planned, inside))
    if exists and not _is_of_another(planned):
        where = (
            "in a network namespace that cannot be found" if inside is None else "in a namespace that the pod has made"
        )
        raise Lingers(
            f'device "{former["name"]}" is not back on the host: it is on its way, or {where}; end the process that holds that namespace,'
            " and repeat the DEL"
        )


def _refuse_on_another(planned: MovePlan, inside: Rtnl) -> None:
    """Raise TryAgainLater if the device stands on the device of another attachment in the sandbox, such as a VLAN whose
    NIC came later. It counts as a link that the pod itself made until that attachment has ended."""
    link = among(planned, inside)
    if link is None or not link.lowers or link.lower_netnsid is not None:
        return
    below = inside.link(index=link.lower_index)
    for attachment, record in devices.recorded(None, Records()) if below else ():
        if below and record["link"]["device"] and devices.is_same(record["link"]["device"], below):
            raise TryAgainLater(
                f'device "{planned.device["name"]}" is on top of "{below.name}" in the sandbox, and can go back only after it: end'
                f" {attachment.ifname} of container {attachment.container_id} (network {attachment.network}), and repeat the DEL"
            )


def _is_only(has_name: bool, parent: str) -> bool:
    """Whether another netdev of `parent` proves that the former netdev is gone. It does if it has the former name
    (`has_name`), or if `parent` is a VF, which has only one netdev. A PF may have a netdev for each port."""
    return has_name or sysfs.physical_function_of(parent) != ""


def _is_of_another(planned: MovePlan) -> bool:
    """Whether the device, or its successor, is in the sandbox of another attachment.

    Concurrent ADDs may all have written a record of the device, so its sandbox must show it. The record of `planned`
    itself does not count, since the caller has not found the device in the sandbox of this record.
    """
    former, own = planned.device, (planned.pci, planned.device["parent"])
    for _, record in devices.recorded(None, Records()):
        other = MovePlan(record["link"])
        succeeds = (
            any(own)
            and (other.pci, other.device.get("parent")) == own
            and other.device["index"] != former["index"]
            and _is_only(other.device["name"] == former["name"], planned.pci or former["parent"])
        )
        there = sandboxes.of_record(record, Request({"CNI_COMMAND": "DEL"}, b"", {}, {}))
        if there:
            with there:
                if devices.recognises(planned, there.rtnl) or (succeeds and devices.recognises(other, there.rtnl)):
                    return True
    return False


def _in_namespace_of(planned: MovePlan, rtnl: Rtnl, but: Rtnl | None = None) -> bool:
    """Whether the device is in a namespace, other than that of `but`, with an id (nsid) in the namespace of `rtnl`."""
    return any(_is_of(planned, link) for nsid in rtnl.ids_of_others(but) for link in rtnl.links_of(nsid))


def _is_of(planned: MovePlan, link: Link) -> bool:
    """Whether `link` has the device's index and mark (the alias that a move sets), or its MAC and name. The mark alone
    is not enough, since a later device may have the same mark. A link that the pod itself made does not count."""
    former = planned.device
    is_marked = link.alias == former["name"] and link.index == former["index"]
    is_named = link.mac == former["mac"] and link.name in (planned.name, former["name"])
    return link.kind == former["kind"] and (is_marked or is_named) and not devices.stands_on_its_own(former, link)


def _move_back(planned: MovePlan, link: Link, host: Rtnl, inside: Rtnl) -> None:
    name, index = planned.device["name"], planned.device["index"]
    if index == link.index or host.link(index=index):
        index = 0  # the link keeps its index, or the kernel chooses one
    if host.link(name=name):
        name = "dev%d"  # the name that the kernel gives in this case (default_device_exit_net); `restore.restore` reports it
    else:
        _name_again(link, name, inside)
    home = host.namespace()  # the thread may still be in the sandbox, after a failure to leave it
    try:
        with_names_free(
            inside, host, link.index, lambda: inside.change_link(link.index, netns_fd=home, name=name, new_index=index)
        )
    except KernelError as fault:
        raise KernelRefused(
            f'device "{planned.device["name"]}" cannot be moved back to the host: {fault.strerror}; repeat the DEL',
            str(fault),
        ) from None
    finally:
        os.close(home)


def _name_again(link: Link, name: str, inside: Rtnl) -> None:
    """Rename the device to `name` before it reaches the host, where programs such as udev would act on its old name. If
    another link of the sandbox has the name, the move itself renames the device."""
    if link.name == name:
        return
    try:
        inside.change_link(link.index, up=False)  # before Linux 6.2 a link that is up keeps its name
        if name in link.altnames:
            inside.remove_altname(link.index, name)
        inside.change_link(link.index, name=name)
    except KernelError:
        pass


def with_names_free(here: Rtnl, there: Rtnl, index: int, move: Callable[[], None]) -> None:
    """Call `move`, which moves the link `index` from `here` to `there`. Raises the KernelError of `move`.

    The move fails when another link in `there` has one of the link's alternative names. Then this function removes such
    names from the link, and repeats the move. The record keeps the names, and the DEL restores each name that is free.
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


def without_link(planned: MovePlan) -> tuple[str, int] | None:
    """The MAC, which is unknown (""), and the configured MTU of a device with a userspace driver; None for a netdev."""
    return None if planned.device else ("", planned.mtu)


def differences(planned: MovePlan, link: Link | None) -> list[str]:
    """A list of one text if `link` is not the device of the plan; otherwise []."""
    if link and planned.device and not devices.is_same(planned.device, link):
        return [f'"{link.name}" is not the device "{planned.device["name"]}" of the host']
    return []


def carrier(planned: MovePlan) -> tuple[str, bool]:
    """The name of the device on the host, and False, since the device is still there when the plan is made."""
    return planned.device.get("name", ""), False
