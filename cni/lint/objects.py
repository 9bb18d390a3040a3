"""The lint's rules for Kubernetes objects other than NADs: custom resources of operators, configurations of
device plugins, and requests for their resources. Their keys decide whether pods have RDMA and unique addresses.

Networks (MacvlanNetwork, HostDeviceNetwork, IPoIBNetwork, SriovNetwork) are rendered as NADs, and the NADs are
examined. In a SriovNetworkNodePolicy and a NicClusterPolicy, the lint checks the keys that decide whether pods get a
verbs device. Pools of nv-ipam must not overlap with the ranges of railcni's IPAM plugin. Sources: api/v1 of
k8snetworkplumbingwg/sriov-network-operator; api/v1alpha1 of Mellanox/network-operator and of Mellanox/nvidia-k8s-ipam.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from cni.documents import reader
from cni.documents.diagnostic import Diagnostic, Scope, keys_of, near, shown
from cni.documents.networks import NETWORKS
from cni.documents.tree import Keys, Text, object_at, string_at, value_at
from cni.lint import network, nvidia
from cni.lint.addresses import Use
from cni.lint.plugin import Claim, PodNetworks, ResourceWant, Surroundings
from cni.resources import config
from cni.resources.models import POLICY_FIXES, VFIO, NicSelector, label
from cni.shared.kernel import rdma_sysfs
from cni.shared.spec import codec
from ipam.ranges import parse_span

_POOLS = {"IPPool": "subnet", "CIDRPool": "cidr"}
_DEVICE_PLUGINS = ("rdmaSharedDevicePlugin", "sriovDevicePlugin")
_TEMPLATES = (), ("spec", "template"), ("spec", "jobTemplate", "spec", "template")  # paths to a pod, or to its template
_TEMPLATE = "ResourceClaimTemplate"  # Multus reads only claims that are made from a template
_CLAIMS: dict[str, tuple[str, ...]] = {"ResourceClaim": (), _TEMPLATE: ("spec",)}
_RESOURCE = re.compile(r'"k8s\.cni\.cncf\.io"\]\.resourceName\s*==\s*"([^"]+)"')  # in a selector of devices
_CONTAINERS = ("initContainers", "containers")


def examine(scope: Scope, around: Surroundings) -> bool:
    """Add the faults of the Kubernetes object in `scope` to its findings. Return whether the object is a custom
    resource of a known kind, or a ConfigMap with configurations of device plugins."""
    document = scope.root.data
    kind, group = string_at(document, "kind"), string_at(document, "apiVersion").partition("/")[0]
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
        return _plain(scope, around)
    return True


def _network(scope: Scope, around: Surroundings) -> None:
    """Examine the operator's network in `scope`, a custom resource, by the NAD that the operator makes from it. Report
    each fault of the NAD at the key of the custom resource from which the faulty value comes."""
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
    """Find the place in the operator's network from which the value at `keys` of its NAD comes. Return (document, path
    in the document). The document is the network in `scope`, or the JSON text in the network's field `ipam`."""
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
            device_plugin(inner, around)
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


# --- device plugins, and requests for their resources ---


def device_plugin(scope: Scope, around: Surroundings) -> None:
    """Add the faults of a device plugin's configuration to the findings, and its resources to `around.offers`."""
    found = config.Config(findings=scope.findings)
    config.read_document(scope, found)
    around.offers.update(resource.name for resource in found.resources)


def _plain(scope: Scope, around: Surroundings) -> bool:
    """Examine device plugins' configurations in a ConfigMap, and return whether there are any. From other objects, add
    to `around` the resources that a pod, pod template or claim requests, and the resource of a DeviceClass."""
    document, kind = scope.root.data, string_at(scope.root.data, "kind")
    scope.network = ""
    namespace = str(value_at(document, "metadata", "namespace") or "default")
    if kind == "ConfigMap":
        texts = {k: v for k, v in object_at(document, "data").items() if isinstance(v, str)}
        of_plugins = [key for key, text in texts.items() if any(f'"{name}"' in text for name in config.LISTS)]
        for key in of_plugins:
            if inner := reader.json_inside(scope, ("data", key)):
                device_plugin(inner, around)
        return bool(of_plugins)
    name = str(value_at(document, "metadata", "name") or "")
    if kind in _CLAIMS:
        listed = value_at(document, *_CLAIMS[kind], "spec", "devices", "requests")
        around.requests[kind, namespace, name] = set(_requests(listed))
        return False
    if kind == "DeviceClass":
        spec = object_at(document, "spec")
        of = spec.get("extendedResourceName") or _selected(spec)
        around.classes.update({name: str(of)} if of else {})
        return False
    for template in _TEMPLATES:
        keys = (*template, "spec")
        asked = list(_asked(scope, keys))
        around.wants.extend(asked)
        claims = _claims(value_at(document, *keys, "resourceClaims"), namespace)
        at = (*template, "metadata", "annotations", NETWORKS)
        if (asked or claims) and (text := string_at(document, *at)):
            names, resources = _names(text, namespace), {want.resource for want in asked}
            around.pods.append(PodNetworks(scope, at, names, resources, claims))
    return False


def _asked(scope: Scope, keys: Keys) -> Iterator[ResourceWant]:
    """Yield each resource in the limits of containers in the pod spec at the path `keys`, which may be missing."""
    _, pod, depth = scope.root.walk(keys)
    for name in _CONTAINERS if depth == len(keys) else ():
        found = pod.member(name)
        for number in range(len(found.node.items or ())) if found else ():
            place = (*keys, name, number, "resources", "limits")
            _, limits, reached = scope.root.walk(place)
            for one in limits.members or [] if reached == len(place) else []:
                yield ResourceWant(one.name, scope, (*place, one.name), at_key=True)


def _objects(value: Any) -> list[dict[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _claims(listed: Any, namespace: str) -> list[Claim]:
    """Return (kind, namespace, name) of each claim, or template of a claim, in `listed`, a pod's `resourceClaims`."""
    kinds = {"resourceClaimTemplateName": "ResourceClaimTemplate", "resourceClaimName": "ResourceClaim"}
    return [(kinds[key], namespace, str(one[key])) for one in _objects(listed) for key in kinds if one.get(key)]


def _requests(listed: Any) -> Iterator[tuple[str, str]]:
    """Yield (DeviceClass, resource named by the selectors) of each device request in the list of a ResourceClaim. If a
    request has alternatives (firstAvailable), yield a pair for each alternative."""
    for request in _objects(listed):
        for one in _objects([request.get("exactly"), *_objects(request.get("firstAvailable"))]):
            yield str(one.get("deviceClassName")), _selected(one)


def _selected(chooser: dict[str, Any]) -> str:
    """The resource named in the CEL selectors of a device request or of a DeviceClass; "" if they name none."""
    expressions = [
        str(one["cel"].get("expression")) for one in _objects(chooser.get("selectors")) if _objects([one.get("cel")])
    ]
    return next((found[1] for text in expressions if (found := _RESOURCE.search(text))), "")


def _names(text: str, namespace: str) -> list[tuple[str, str]]:
    """Return (namespace, name) of each network in `text`, a pod's annotation. It is JSON, or a list such as
    "NAMESPACE/NAME@IFNAME, NAME". A network without a namespace gets `namespace`."""
    try:
        listed = codec.loads(text.encode()) if text.lstrip().startswith("[") else []
        return [(str(one.get("namespace") or namespace), str(one["name"])) for one in listed] or [
            (before or namespace, name)
            for before, _, name in (one.strip().partition("@")[0].rpartition("/") for one in text.split(","))
        ]
    except (ValueError, LookupError, TypeError, AttributeError):
        return []  # Multus refuses such an annotation


def compare(around: Surroundings) -> None:
    """Warn of each request for a resource that no device plugin offers, if a device plugin offers other resources with
    the same part before "/". Warn also of pods that request other resources than their networks need."""
    classes = {label(name): name for name in (*around.offers, *around.resources.values())} | around.classes
    for pod in around.pods:
        _compare(pod, around, classes)
    domains = {name.partition("/")[0] for name in around.offers}
    for want in around.wants:
        if want.resource not in around.offers and want.resource.partition("/")[0] in domains:
            same = sorted(name for name in around.offers if name.partition("/")[0] == want.resource.partition("/")[0])
            message = f"no configuration of a device plugin here offers {want.resource}, but {', '.join(same[:5])}"
            fix = f"write {near(want.resource, same) or same[0]}, or have {want.resource} offered"
            want.scope.warn(want.keys, message, fix, at_key=want.at_key)


def _compare(pod: PodNetworks, around: Surroundings, classes: dict[str, str]) -> None:
    """Warn of each network of `pod` whose resource (DOMAIN/NAME) the pod does not get, if the pod has a request that
    seems to be meant for the resource. Such a request is a claim for the resource, but not from a template; a claim for
    another resource of DOMAIN, or for devices that no network of the pod needs; or a container's limit for another
    resource of DOMAIN. Without such a request there is no warning, since a webhook may add a request."""
    asked = {
        claim: {(name, of or classes.get(name, "")) for name, of in around.requests.get(claim, ())}
        for claim in pod.claims
    }
    needed = {around.resources.get(one) for one in pod.networks}
    for one in pod.networks:
        resource = around.resources.get(one, "")
        givers = {kind for (kind, *_), requests in asked.items() if resource in {of for _, of in requests}}
        if not resource or resource in pod.resources or _TEMPLATE in givers:
            continue
        domain = resource.partition("/")[0]
        claimed = sorted(
            name if not of or name == label(of) else f"{name} ({of})"
            for name, of in set().union(*asked.values())
            if (of and (of not in needed or of.startswith(f"{domain}/")))
            or (not of and name.startswith(f"{label(domain)}-"))
        )
        others = sorted(name for name in pod.resources if name.startswith(f"{domain}/"))
        what = f"the network {one[1]} needs a device of {resource}, and the pod"
        if givers:
            message = f"{what} names its claim by resourceClaimName, which Multus does not read"
            fix = f"make a {_TEMPLATE} of the claim, and name it by resourceClaimTemplateName"
            pod.scope.warn(pod.keys, message, fix)
        elif claimed:
            fix = f"add a request with deviceClassName {label(resource)} to its claim"
            pod.scope.warn(pod.keys, f"{what} claims {', '.join(claimed)}", fix)
        elif others:
            fix = f"add {resource}: 1 to the limits of a container"
            pod.scope.warn(pod.keys, f"{what} asks for {', '.join(others)}", fix)
