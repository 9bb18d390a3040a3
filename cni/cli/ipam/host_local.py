"""The leases of the IPAM plugin host-local: a file DATADIR/NETWORK/ADDRESS for each address.

The first line of such a file is the containerID, the second the ifname (containernetworking/plugins,
plugins/ipam/host-local/backend/disk). Pod and namespace come from libcni's cached result of the attachment.
"""

from __future__ import annotations

import os
from contextlib import suppress

from cni.node.runtime.cache import Cache, worded
from cni.shared.kernel import node
from cni.shared.kernel.files import read_whole
from cni.shared.spec.errors import InvalidConfig
from cni.shared.spec.request import Attachment, ifname_fault, is_identifier
from ipam.leases import Lease, Owner, Want
from ipam.ranges import Range, format_address, parse_address


def read(directory: str, network: str, network_name: str, ranges: list[Range], host: str, cache: Cache) -> list[Lease]:
    """Read the leases in `directory`. `ranges` and `network_name` determine the pool of each lease.

    `network` names the CNI network; "" means the name of `directory`. Raises InvalidConfig for an address in no range.
    """
    network = network or os.path.basename(os.path.normpath(directory))
    known = {(e.parameters.container_id, e.parameters.ifname): e.parameters for e in cache.all(network)}
    found, strays = [], []
    with worded(f"{directory} cannot be listed"):
        names = sorted(os.listdir(directory))
    for name in names:
        try:
            address = parse_address(name)
        except ValueError:
            continue  # "lock" and last_reserved_ip.N are no leases
        rng = next((r for r in ranges if r.family == address[0] and r.contains(address[1])), None)
        if rng is None:
            strays.append(format_address(*address))
        elif entry := _entry(os.path.join(directory, name)):  # else a DEL has removed it meanwhile
            container, ifname, sequence = entry
            want = Want(rng.pool_name(network_name), *address, network_name)
            cached = known.get((container, ifname))
            args = dict(cached.args) if cached else {}
            pod = (args.get("K8S_POD_NAMESPACE", ""), args.get("K8S_POD_NAME", ""), args.get("K8S_POD_UID", ""))
            netns = cached.netns if cached else ""  # without netns no node, or the namespace would count as gone
            where = (host, node.boot_id(), netns) if netns else ("", "", "")
            found.append(Lease(want, Owner(Attachment(network, container, ifname), pod, *where, sequence)))
    if strays:
        remedy = "add --range CIDR for each subnet of that network"
        raise InvalidConfig(f"{directory} has leases of no range that is named: {', '.join(strays[:10])}; {remedy}")
    return sorted(found, key=lambda lease: (lease.pool, lease.value))


def remove(directory: str, lease: Lease) -> bool:
    """Remove the file of `lease` if the file still has this lease; return whether it was removed."""
    path = os.path.join(directory, format_address(lease.family, lease.value))
    with worded(f"{path} cannot be removed"), suppress(FileNotFoundError):
        entry = _entry(path)
        if entry and entry[:2] == (lease.container_id, lease.ifname):
            os.unlink(path)
            return True
    return False


def _entry(path: str) -> tuple[str, str, int] | None:
    """The content of a lease file: (containerID, ifname, time of writing in ns since 1970); None if the file is gone.
    Older versions wrote no ifname; it was eth0 then."""
    with worded(f"{path} cannot be read"), suppress(FileNotFoundError):
        lines = read_whole(path).decode("utf-8", "replace").split()
        container, ifname = lines[0] if lines else "", lines[1] if len(lines) > 1 else "eth0"
        if not is_identifier(container) or ifname_fault(ifname):  # no DEL could free such a lease
            said = f'says "{" ".join(lines)[:60]}", which names no container and interface' if lines else "is empty"
            raise InvalidConfig(f"{path} {said}: find out whose address it is, or remove it")
        return container, ifname, os.stat(path).st_mtime_ns
    return None
