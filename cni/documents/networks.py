"""Read a network: a conflist, a single configuration or a NetworkAttachmentDefinition (NAD).

A network is given by name or path. A name is searched in the net.d directory in the order of libcni (conflists first,
then single configurations, each in the order of the file names), and last in NADs of this directory. A file at a path
may have any of these kinds. A NAD is read as in Multus. All faults of a file are reported at once, with their places.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from cni.documents import NET_DIRECTORY, reader
from cni.documents.diagnostic import Diagnostic, Scope, refusal
from cni.documents.models import Configuration, NetworkAttachmentDefinition, PluginModel
from cni.documents.tree import Keys, Text
from cni.shared.spec.errors import CniError, InvalidConfig, IoFailure
from cni.shared.spec.request import member

RESOURCE_NAME = "k8s.v1.cni.cncf.io/resourceName"  # the annotation that names the resource of a NAD's devices
NETWORKS = "k8s.v1.cni.cncf.io/networks"  # the annotation that names the networks of a pod
_EXTENSIONS = ((".conflist",), (".conf", ".json"), (".yaml", ".yml"))  # in the order in which they are searched
_SUGGESTED = 10


class ChainStep(NamedTuple):
    """One plugin of a network: its name, the capability arguments that it takes, and the JSON object as written."""

    type: str
    capabilities: dict[str, bool]
    document: dict[str, Any]


@dataclass(frozen=True)
class Network:
    """A network that can be attached. `versions` are the spec versions that it allows, oldest first. `document` is
    the conflist, which libcni caches beside a result. `nad` is the "namespace/name" of its NAD, "" without a NAD."""

    name: str
    versions: tuple[str, ...]
    steps: tuple[ChainStep, ...]
    document: dict[str, Any] = field(repr=False)
    path: str
    disable_check: bool = False
    disable_gc: bool = False
    nad: str = ""
    resource_name: str = ""

    def with_device(self, device: str) -> Network:
        """Return the network with `device` as each plugin's deviceID and pciBusID, as in Multus. "" changes nothing."""
        if not device:
            return self
        keys = {"deviceID": device, "pciBusID": device}
        steps = tuple(s._replace(document={**s.document, **keys}) for s in self.steps)
        return replace(self, steps=steps, document={**self.document, "plugins": [s.document for s in steps]})


def find(reference: str, directory: str = NET_DIRECTORY) -> Network:
    """Return the network `reference`: a path, path#NAME in a file with several networks, or a name in `directory`.
    Raises InvalidConfig for a missing, ambiguous or faulty network, IoFailure when a folder cannot be listed."""
    path, _, name = reference.partition("#")
    if "/" not in path and not name:
        return _search(reference, directory)
    networks = read(path, directory)
    chosen = [n for n in networks if not name or name in (n.name, n.nad, n.nad.rpartition("/")[2])]
    if len(chosen) == 1:
        return chosen[0]
    names = ", ".join(sorted(n.nad or n.name for n in networks)) or "none"
    if not chosen:
        raise InvalidConfig(f"{path} holds no network {name}: there is {names}")
    raise InvalidConfig(f"{path} holds several networks: write {path}#NAME with one of {names}")


def from_document(document: dict[str, Any], path: str) -> Network:
    """The network of the conflist `document` from libcni's cache file `path`. Raises InvalidConfig if it has faults."""
    faults: list[Diagnostic] = []
    scope = reader.of_json(Text(path, json.dumps(document)), faults)
    network = _network(scope) if scope else None
    if network is None:
        raise refusal(path, faults)
    return network


def _search(name: str, directory: str) -> Network:
    """Return the network `name` in `directory`. Broken files are skipped, but are reported if no network is found."""
    seen: list[str] = []
    broken: list[CniError] = []
    for networks in _in(directory, _EXTENSIONS, broken):
        for network in networks:
            if name in (network.name, network.nad, network.nad.rpartition("/")[2]):
                return network
            seen.append(network.name)
    missing = f"no network {name} in {directory}"
    remedy = "no network is defined there; name a file with its path, or --conf-dir"
    if seen:
        remedy = f"there is {', '.join(seen[:_SUGGESTED])}"
    if os.path.exists(name):
        remedy += f'; for the file write "./{name}"'
    elif os.path.splitext(name)[1] in sum(_EXTENSIONS, ()):
        missing = f"no file {name} here, and no network of that name in {directory}"
    if broken:
        remedy += f"; {len(broken)} file(s) there cannot be read"
    raise InvalidConfig(f"{missing}: {remedy}", "\n".join(f"{b.msg}\n{b.details}".strip() for b in broken))


def _in(directory: str, kinds: Iterable[tuple[str, ...]], broken: list[CniError]) -> Iterator[list[Network]]:
    """Yield the networks of each file in `directory`. Each kind is a tuple of file extensions; the files of the first
    kind come first. Errors of files are added to `broken`."""
    for path in (path for extensions in kinds for path in files(directory, extensions)):
        try:
            yield read(path, directory)
        except CniError as fault:
            broken.append(fault)


def files(directory: str, extensions: tuple[str, ...]) -> list[str]:
    """Return the sorted paths of files in `directory` with these extensions. Raises IoFailure when listing fails."""
    try:
        names = sorted(os.listdir(directory))
    except FileNotFoundError:
        return []
    except OSError as fault:
        raise IoFailure(f"{directory} cannot be listed: {fault.strerror}") from None
    paths = [os.path.join(directory, n) for n in names if os.path.splitext(n)[1] in extensions]
    return [p for p in paths if not os.path.isdir(p)]


def read(path: str, directory: str = NET_DIRECTORY) -> list[Network]:
    """Return all networks in the file `path`. If the config of a NAD is empty, its network is searched in `directory`.
    Raises InvalidConfig with all faults, IoFailure if a directory cannot be listed."""
    faults: list[Diagnostic] = []
    found: list[Network | None] = []
    for is_json, document in reader.documents(path, None, faults):
        for scope in reader.objects(document):
            content = scope.root.data
            if isinstance(content, dict) and content.get("kind") == "NetworkAttachmentDefinition":
                found.append(_attachment_definition(scope, directory))
            elif is_json and isinstance(content, dict) and "apiVersion" not in content:
                found.append(_network(scope))
    networks = [network for network in found if network]
    if not networks and not faults:
        raise InvalidConfig(f"{path}: holds neither a CNI network (JSON) nor a NetworkAttachmentDefinition")
    if faults:
        raise refusal(path, faults)
    return networks


def _attachment_definition(scope: Scope, directory: str) -> Network | None:
    nad: NetworkAttachmentDefinition | None = scope.model(NetworkAttachmentDefinition, scope.root.data)
    if nad is None:
        return None
    scope.network = nad.metadata.name
    if nad.spec.config.strip():
        _, node, _ = scope.root.walk(("spec", "config"))
        inner = reader.of_json(reader.string(scope, node), scope.findings, nad.metadata.name)
        network = _network(inner, nad.metadata.name) if inner else None
    else:
        named = (first for first, *_ in _in(directory, _EXTENSIONS[:2], []) if first.name == nad.metadata.name)
        if (network := next(named, None)) is None:
            message = f"is empty, and {directory} has no network of the name {nad.metadata.name}"
            scope.error(("spec", "config"), message)
    if network is None:
        return None
    full = f"{nad.metadata.namespace}/{nad.metadata.name}" if nad.metadata.namespace else nad.metadata.name
    return replace(network, nad=full, resource_name=(nad.metadata.annotations or {}).get(RESOURCE_NAME, ""))


def _network(scope: Scope, nad: str = "") -> Network | None:
    """Return the network of a conflist or a single configuration. If it has faults, return None, and add findings. As
    in libcni, a single configuration becomes a list of one plugin. As in Multus, `nad` names a nameless network."""
    document, known = scope.root.data, len(scope.findings)
    if not isinstance(document, dict):
        scope.error((), "want a JSON object")
        return None
    if nad and not document.get("name"):
        document["name"] = nad
    single = "plugins" not in document and member(document, "type") is not None
    steps = _steps(scope, [((), document)]) if single else []
    if single:
        names = {"name": member(document, "name"), "cniVersion": member(document, "cniVersion")}
        document = {**{k: v for k, v in names.items() if v is not None}, "plugins": [document]}
    listed = document.get("plugins")
    inline = listed if isinstance(listed, list) else []
    outer = document | ({"plugins": [{"type": "any"}] * len(inline)} if inline else {})
    configuration: Configuration | None = scope.model(Configuration, outer)
    if not single:
        steps = _steps(scope, [(("plugins", i), entry) for i, entry in enumerate(inline)])
    if configuration is None:
        return None
    if not single and not nad and not configuration.loadOnlyInlinedPlugins:  # libcni 1.3 appends further plugins
        for path in files(os.path.join(os.path.dirname(scope.text.path), configuration.name), (".conf",)):
            if one := reader.json_file(path, scope.findings):
                steps += _steps(one, [((), one.root.data)])
    if not steps and len(scope.findings) == known:
        scope.error((), "has no plugins: want a list `plugins`, or `type` for a single plugin")
    if len(scope.findings) > known:
        return None
    return Network(
        name=configuration.name,
        versions=configuration.versions,
        steps=tuple(steps),
        document=document,
        path=scope.text.path,
        disable_check=configuration.disableCheck,
        disable_gc=configuration.disableGC,
    )


def _steps(scope: Scope, entries: list[tuple[Keys, Any]]) -> list[ChainStep]:
    found = [(scope.model(PluginModel, entry, keys), entry) for keys, entry in entries]
    return [ChainStep(plugin.type, plugin.capabilities, entry) for plugin, entry in found if plugin is not None]
