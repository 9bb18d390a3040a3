"""Finds the attachment that the options of a command mean, and all living attachments of a network."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
from dataclasses import replace

from cni.documents import networks
from cni.documents.networks import Network
from cni.node.inventory import attachments as recorded
from cni.node.inventory.places import is_alive, is_of_pod, namespace_path
from cni.node.runtime.cache import Cache, CachedResult, Parameters
from cni.shared.spec.errors import CniError, InvalidConfig
from cni.shared.spec.request import is_identifier

_MULTUS = "multus"  # Multus has its own cache below libcni's (its option cniDir)


def new(options: argparse.Namespace, network: Network) -> Parameters:
    """The parameters of a new attachment."""
    netns = namespace_path(options.netns)
    container, ifname = options.container_id or default_container_id(netns), "net1" if network.nad else "eth0"
    device = {"deviceID": options.device_id} if options.device_id else {}
    capabilities = {**device, **options.capability_args}
    return Parameters(container, netns, options.ifname or ifname, options.args, capabilities)


def existing(options: argparse.Namespace, cache: Cache) -> tuple[Network, Parameters, bool]:
    """Return (network, parameters, whether the cache has it) of the existing attachment that the options name."""
    network, missing = None, None
    try:
        network = networks.find(options.network, options.conf_dir)
    except CniError as fault:  # the file may have been removed since the ADD
        missing = fault
    name = network.name if network else options.network
    if options.pod:
        options = _of_pod(options, cache, name)
    entry = _entry(options, cache, name) if is_identifier(name) else None
    if entry is None:
        if network is None:
            raise missing or InvalidConfig(f"no network {name}")
        return network.with_device(options.device_id), new(options, network), False
    network = _as_attached(entry, network, missing)
    known, given = entry.parameters, new(options, network)
    capabilities = {**known.capability_args, **given.capability_args}
    parameters = replace(known, args=given.args or known.args, capability_args=capabilities)
    return network.with_device(options.device_id), parameters, True


def _of_pod(options: argparse.Namespace, cache: Cache, name: str) -> argparse.Namespace:
    """A copy of `options` with containerID, interface and namespace of the pod's only attachment to `name`."""
    known = [(e.pod, e.parameters.container_id, e.parameters.ifname, e.parameters.netns) for e in cache.all(name)]
    known += [(a["pod"], a["containerID"], a["ifname"], a["netns"]) for a in recorded.found(name)]
    own = [rest for pod, *rest in known if is_of_pod(pod.partition("/")[::2], options.pod)]
    found = {(container, ifname): netns for container, ifname, netns in own}  # a record counts more than the cache
    chosen = [(*key, netns) for key, netns in found.items() if options.ifname in ("", key[1])]
    if len(chosen) != 1:
        there = ", ".join(f"{ifname} of container {container}" for container, ifname in sorted(found))
        state = f"it has {there}: choose with --ifname, or give the containerID" if there else "this node knows none"
        raise InvalidConfig(f"no single attachment of pod {options.pod} to {name}: {state}")
    container, ifname, netns = chosen[0]
    named = {"container_id": container, "ifname": ifname, "netns": options.netns or netns}
    return argparse.Namespace(**{**vars(options), **named})


def _entry(options: argparse.Namespace, cache: Cache, name: str) -> CachedResult | None:
    """The cached attachment to the network `name` that the options mean. Raises InvalidConfig if there are several."""
    netns = namespace_path(options.netns)
    wanted = options.container_id or default_container_id(netns)

    def is_meant(known: Parameters) -> bool:
        is_there = known.container_id == wanted or (not options.container_id and _same(known.netns, netns))
        return is_there and options.ifname in ("", known.ifname)

    found = [entry for entry in cache.all(name) if is_meant(entry.parameters)]
    if len(found) > 1:  # with a default, one call would detach the first, the next call the second
        names = ", ".join(f"{e.parameters.ifname} ({e.parameters.container_id})" for e in found)
        how = "choose with --ifname and --container-id"
        raise InvalidConfig(f"{name} is attached to {netns} more than once: {how}: {names}")
    return found[0] if found else None


def _as_attached(entry: CachedResult, network: Network | None, missing: CniError | None) -> Network:
    try:
        kept = networks.from_document(json.loads(entry.config), f"the cached configuration of {entry.network}")
    except (ValueError, CniError):
        if network is None:
            raise missing or InvalidConfig(f"no network {entry.network}") from None
        return network
    if network is None:
        return kept
    if kept.document == network.document:  # only `network` has plugins from files of their own
        return network
    return replace(kept, disable_check=kept.disable_check or network.disable_check)


def default_container_id(netns: str) -> str:
    """The containerID that cnitool derives from a namespace's path."""
    return f"cnitool-{hashlib.sha512(netns.encode()).digest()[:10].hex()}"


def _same(a: str, b: str) -> bool:
    """Whether two paths lead to the same namespace; if a namespace is gone, whether the paths are the same."""
    try:
        return os.path.samefile(a, b)
    except OSError:
        return os.path.realpath(a) == os.path.realpath(b)


def living(network: str, cache: Cache) -> list[Parameters]:
    """The attachments to `network` in this node's caches and records whose namespace still exists."""
    multus = Cache(os.path.join(cache.directory, _MULTUS))
    known = [Parameters(a["containerID"], a["netns"], a["ifname"]) for a in recorded.found(network) if a["alive"]]
    known = [*(entry.parameters for entry in (*cache.all(network), *multus.all(network))), *known]
    found: dict[tuple[str, str], Parameters] = {}
    for one in (one for one in known if is_alive(one.netns)):
        found.setdefault((one.container_id, one.ifname), one)
    return [*found.values()]
