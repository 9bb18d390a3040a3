"""The leases of the IPAM plugin host-local: DATADIR/NETWORK/ADDRESS, a file an address.

The first line of such a file is the containerID, the second the ifname (containernetworking/plugins,
plugins/ipam/host-local/backend/disk). Pod and namespace are taken from what libcni keeps of the attachment.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from cni.library.runtime.cache import Cache
from cni.shared.kernel import node
from cni.shared.spec.errors import InvalidConfig, IoFailure
from cni.shared.spec.request import Attachment, ifname_fault, is_identifier
from ipam.leases import Lease, Owner, Want
from ipam.ranges import Range, format_address, parse_address


def read(
    directory: str, network: str, network_name: str, ranges: Sequence[Range], node_name: str, cache: Cache
) -> list[Lease]:
    """The leases in `directory`, as leases of the pools of `ranges` in the scope `network_name`.

    `network` is the CNI network's name, "" for that of the directory. InvalidConfig names addresses of no range.
    """
    network = network or os.path.basename(os.path.normpath(directory))
    known = {(e.parameters.container_id, e.parameters.ifname): e for e in cache.all(network)}
    found, strays = [], []
    try:
        names = sorted(os.listdir(directory))
    except OSError as fault:
        raise IoFailure(f"{directory} cannot be listed: {fault.strerror}") from None
    for name in names:
        try:
            address = parse_address(name)
        except ValueError:
            continue  # "lock" and last_reserved_ip.N are no leases
        rng = next((r for r in ranges if r.family == address[0] and r.contains(address[1])), None)
        if rng is None:
            strays.append(format_address(*address))
            continue
        try:
            container, ifname, sequence = _entry(os.path.join(directory, name))
        except FileNotFoundError:
            continue  # a DEL has come meanwhile
        want = Want(rng.pool_name(network_name), *address, network_name)
        entry = known.get((container, ifname))
        args = dict(entry.parameters.args) if entry else {}
        pod = (args.get("K8S_POD_NAMESPACE", ""), args.get("K8S_POD_NAME", ""), args.get("K8S_POD_UID", ""))
        netns = entry.parameters.netns if entry else ""  # without it no node: it would be taken for one that is gone
        where = (node_name, node.boot_id(), netns) if netns else ("", "", "")
        found.append(Lease(want, Owner(Attachment(network, container, ifname), pod, *where, sequence)))
    if strays:
        raise InvalidConfig(
            f"{directory} has leases of no range that is named: {', '.join(strays[:10])}; add --range CIDR for each subnet of"
            " that network"
        )
    return sorted(found, key=lambda lease: (lease.pool, lease.value))


def remove(directory: str, lease: Lease) -> bool:
    """Remove the file of `lease` if its content is unchanged; return whether it was removed."""
    path = os.path.join(directory, format_address(lease.family, lease.value))
    try:
        if _entry(path)[:2] != (lease.container_id, lease.ifname):
            return False
        os.unlink(path)
    except FileNotFoundError:
        return False
    except OSError as fault:
        raise IoFailure(f"{path} cannot be removed: {fault.strerror}") from None
    return True


def _entry(path: str) -> tuple[str, str, int]:
    """(containerID, ifname, time of writing in ns since 1970). Older versions wrote no ifname; it was eth0 then."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            lines = file.read().split()
        written = os.stat(path).st_mtime_ns
    except FileNotFoundError:
        raise
    except OSError as fault:
        raise IoFailure(f"{path} cannot be read: {fault.strerror}") from None
    container, ifname = lines[0] if lines else "", lines[1] if len(lines) > 1 else "eth0"
    if not is_identifier(container) or ifname_fault(ifname):  # no DEL could free such a lease
        said = f'says "{" ".join(lines)[:60]}", which names no container and interface' if lines else "is empty"
        raise InvalidConfig(f"{path} {said}: find out whose address it is, or remove it")
    return container, ifname, written
