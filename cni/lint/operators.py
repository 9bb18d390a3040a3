"""The rules for operators' custom resources: their keys decide whether pods have RDMA and unique addresses.

Networks (MacvlanNetwork, HostDeviceNetwork, IPoIBNetwork, SriovNetwork) are rendered as NADs, which are examined. In a
SriovNetworkNodePolicy and a NicClusterPolicy, the lint checks the keys that decide whether pods get a verbs device.
Pools of nv-ipam must not overlap with the ranges of our IPAM plugin.
Sources: api/v1 of k8snetworkplumbingwg/sriov-network-operator; api/v1alpha1 of Mellanox/network-operator and of
Mellanox/nvidia-k8s-ipam.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from cni.documents import reader
from cni.documents.diagnostic import Diagnostic, Scope
from cni.documents.refusals import keys_of, shown
from cni.documents.tree import Keys, Text, object_at, string_at, value_at
from cni.lint import network, nvidia, resources
from cni.lint.addresses import Use
from cni.lint.plugin import ResourceWant, Surroundings
from cni.resources import config
from cni.resources.models import POLICY_FIXES, VFIO, NicSelector
from cni.shared.kernel import rdma_sysfs
from ipam.ranges import parse_span

_POOLS = {"IPPool": "subnet", "CIDRPool": "cidr"}
_DEVICE_PLUGINS = ("rdmaSharedDevicePlugin", "sriovDevicePlugin")


def examine(scope: Scope, around: Surroundings) -> bool:
    """Note the faults of the custom resource in `scope`; return whether its kind is known."""
    document = scope.root.data
    if not isinstance(document, dict):
        return False
    kind, group = str(document.get("kind")), str(document.get("apiVersion", "")).partition("/")[0]
    if nvidia.is_network(document):
        _network(scope, around)
        return True
    scope.network, spec = string_at(document, "metadata", "name"), object_at(document, "spec")
    if (kind, group) == ("SriovNetworkNodePolicy", "sriovnetwork.openshift.io"):
        _node_policy(scope, spec)
        if isinstance(spec.get("resourceName"), str):
            around.offers.add(f"{nvidia.SRIOV_PREFIX}/{spec['resourceName']}")
    elif (kind, group) == ("NicClusterPolicy", "mellanox.com"):
        _cluster_policy(scope, spec, around)
    elif kind in _POOLS and group == "nv-ipam.nvidia.com":
        _pool(scope, spec, kind, around)
    else:
        return False
    return True


def _network(scope: Scope, around: Surroundings) -> None:
    """Examine the NAD that the operator makes of the network; note the findings at the network's spec."""
    nad = nvidia.render(scope)
    if nad is None:
        return
    findings: list[Diagnostic] = []
    inner = replace(around, uses=[], wants=[])
    made = reader.of_json(Text(scope.text.path, json.dumps(nad)), findings)
    if made is not None:
        network.examine_nad(made, inner)
    for use in inner.uses:
        written, keys = _written(scope, use.keys)
        around.uses.append(replace(use, scope=written, keys=keys))
    around.wants.extend(ResourceWant(want.resource, scope, ("spec", "resourceName")) for want in inner.wants)
    for found in findings:
        if found.key != "cniVersion":
            of_annotation = found.key.startswith("metadata.annotations")
            written, keys = _written(scope, ("resourceName",) if of_annotation else keys_of(found.key))
            message = f"{found.key}: {found.message}" if keys == ("spec",) and found.key else found.message
            written.error(keys, message, found.fix, severity=found.severity)


def _written(scope: Scope, keys: Keys) -> tuple[Scope, Keys]:
    """Return the document and the keys, in the operator's network `scope`, that give its NAD the value at `keys`."""
    if keys[:1] == ("plugins",):
        keys = ("metaPlugins",) if keys[1:2] != (0,) else keys[2:]
    first = str(keys[0]) if keys else ""
    at: Keys = ("spec", {"metadata": "networkNamespace"}.get(first, first.replace("_", "")))
    _, node, depth = scope.root.walk(at)
    if depth < len(at):
        return scope, ("spec",)
    if first == "ipam" and isinstance(node.data, str) and (inner := reader.json_inside(scope, at)):
        return inner, keys[1:]
    return scope, at


def _node_policy(scope: Scope, spec: dict[str, Any]) -> None:
    kind, is_rdma, mtu = spec.get("deviceType") or "netdevice", spec.get("isRdma"), spec.get("mtu")
    selector, number = spec.get("nicSelector"), spec.get("numVfs")
    at, names = ("spec", "nicSelector"), NicSelector.model_construct()
    if isinstance(selector, dict) and not selector.get("netFilter"):  # netFilter chooses NICs of OpenStack
        names = scope.model(NicSelector, selector, at, POLICY_FIXES) or names
    whole = number if isinstance(number, int) else 0
    config.check_policy(scope, at[:1], names, whole, is_rdma is True and kind == VFIO)
    if is_rdma is not True and kind == "netdevice":
        message = "without isRdma: true the device plugin gives pods no /dev/infiniband"
        scope.warn(("spec", "isRdma"), message, "add isRdma: true, where pods use RDMA")
    if isinstance(mtu, int) and 0 < mtu < rdma_sysfs.MTU_FOR_WHOLE_ROCE:
        message = f"RoCE makes {rdma_sysfs.roce_mtu(mtu)} of {mtu}: for its {rdma_sysfs.WHOLE_ROCE_MTU} it needs {rdma_sysfs.MTU_FOR_WHOLE_ROCE} or more"
        scope.warn(("spec", "mtu"), message, "write 9000, where the fabric carries it")
    if whole < 1:
        scope.error(("spec", "numVfs"), f"{shown(number)}: want 1 or more", "write numVfs: 8, for example")


def _cluster_policy(scope: Scope, spec: dict[str, Any], around: Surroundings) -> None:
    for name in _DEVICE_PLUGINS:
        is_given = string_at(spec, name, "config").strip()
        if is_given and (inner := reader.json_inside(scope, ("spec", name, "config"))):
            reader.duplicates(inner)
            resources.examine(inner, around)
    for name, message, fix in (
        (
            "ipamPlugin",
            "the operator has no whereabouts since 25.10",
            "install railcni's, and update the operator: one before 25.10 deletes the pools when this is removed",
        ),
        (
            "cniPlugins",
            "its DaemonSet writes macvlan and host-device over those of `railcni install --replace` at each start",
            "remove it, or let networks name railcni-macvlan and railcni-host-device",
        ),
    ):
        if value_at(spec, "secondaryNetwork", name):
            scope.warn(("spec", "secondaryNetwork", name), message, fix, at_key=True)


def _pool(scope: Scope, spec: dict[str, Any], kind: str, around: Surroundings) -> None:
    key = _POOLS[kind]
    text = spec.get(key)
    try:
        family, low, high = parse_span(str(text))
    except ValueError as fault:
        scope.error(("spec", key), f"{shown(text)}: {fault}", "write a CIDR such as 192.168.0.0/16")
        return
    around.uses.append(
        Use(f"the {kind} {scope.network} of nv-ipam", str(text), family, low, high, scope, ("spec", key))
    )
