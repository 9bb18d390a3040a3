"""Finding and reading a network: a conflist, a single configuration or a NetworkAttachmentDefinition.

By name it is looked for in the net.d directory as libcni looks (conflists first, then single configurations, each in
the order of their file names), and last in the NADs there. By path any of the three is read, whatever the file is
called. A NAD is read as Multus reads it. All faults of a file are told at once, each with its place.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import yaml

from cni.cli.models import Configuration, NetworkAttachmentDefinition, Plugin, validate
from cni.cli.places import NET_DIRECTORY
from cni.cli.source import Keys, Source, descend
from cni.spec.errors import CniError, InvalidConfig, IoFailure
from cni.spec.request import member

RESOURCE_NAME = "k8s.v1.cni.cncf.io/resourceName"  # the annotation by which Multus looks for a device
_EXTENSIONS = ((".conflist",), (".conf", ".json"), (".yaml", ".yml"))  # in the order in which they are searched
_SUGGESTED = 10


@dataclass(frozen=True)
class Step:
    """One plugin of a network: the model of what the runtime reads, and the JSON object as it was written."""

    plugin: Plugin
    document: dict[str, Any]

    @property
    def type(self) -> str:
        return self.plugin.type


@dataclass(frozen=True)
class Network:
    """A network that can be attached. `versions` are the spec versions it may be used with, oldest first; `document`
    is its conflist, which libcni keeps beside a result; `nad` is "namespace/name" of the NAD it came from, or ""."""

    name: str
    versions: tuple[str, ...]
    steps: tuple[Step, ...]
    document: dict[str, Any] = field(repr=False)
    path: str
    disable_check: bool = False
    disable_gc: bool = False
    nad: str = ""
    resource_name: str = ""

    def with_device(self, device: str) -> Network:
        """This network with the device's id in every plugin, as Multus hands on what a device plugin allocated."""
        keys = {"deviceID": device, "pciBusID": device}
        steps = tuple(Step(s.plugin, {**s.document, **keys}) for s in self.steps)
        return replace(self, steps=steps, document={**self.document, "plugins": [s.document for s in steps]})


def find(reference: str, directory: str = NET_DIRECTORY) -> Network:
    """The network that a person means: a path, a path#NAME where the file holds several, or a name in `directory`."""
    path, _, name = reference.partition("#")
    if "/" in path or name:
        return _choose(read(path, directory), name, path)
    return _search(reference, directory)


def from_document(document: dict[str, Any], path: str) -> Network:
    """The network of a conflist that a runtime has kept as JSON; InvalidConfig when it is none."""
    faults: list[str] = []
    network = _network(document, Source(path, json.dumps(document)), faults)
    if network is None:
        raise _refusal(path, faults)
    return network


def _choose(networks: list[Network], name: str, path: str) -> Network:
    chosen = [n for n in networks if not name or name in (n.name, n.nad, n.nad.rpartition("/")[2])]
    if len(chosen) == 1:
        return chosen[0]
    names = ", ".join(sorted(n.nad or n.name for n in networks)) or "none"
    if not chosen:
        raise InvalidConfig(f"{path} holds no network {name}: there is {names}")
    raise InvalidConfig(f"{path} holds several networks: write {path}#NAME with one of {names}")


def _search(name: str, directory: str) -> Network:
    """The network `name` in `directory`. A file that is broken is passed over, and told about when nothing is found."""
    seen: list[str] = []
    broken: list[CniError] = []
    for extensions in _EXTENSIONS:
        for path in _files(directory, extensions):
            try:
                networks = read(path, directory)
            except CniError as fault:
                broken.append(fault)
                continue
            for network in networks:
                if name in (network.name, network.nad, network.nad.rpartition("/")[2]):
                    return network
                seen.append(network.name)
    remedy = f"there is {', '.join(seen[:_SUGGESTED])}" if seen else "no network is defined there"
    if os.path.exists(name):
        remedy += f'; for the file write "./{name}"'
    if broken:
        remedy += f"; {len(broken)} file(s) there cannot be read"
    raise InvalidConfig(
        f"no network {name} in {directory}: {remedy}", "\n".join(f"{b.msg}\n{b.details}".strip() for b in broken)
    )


def _files(directory: str, extensions: tuple[str, ...]) -> list[str]:
    try:
        names = sorted(os.listdir(directory))
    except FileNotFoundError:
        return []
    except OSError as fault:
        raise IoFailure(f"{directory} cannot be listed: {fault.strerror}") from None
    paths = [os.path.join(directory, n) for n in names if os.path.splitext(n)[1] in extensions]
    return [p for p in paths if not os.path.isdir(p)]


def read(path: str, directory: str = NET_DIRECTORY) -> list[Network]:
    """Every network in the file `path`; InvalidConfig with all its faults, IoFailure when it cannot be read."""
    try:
        with open(path, encoding="utf-8") as file:
            source = Source(path, file.read())
    except UnicodeDecodeError as fault:
        raise InvalidConfig(f"{path} is not UTF-8 text: byte {fault.start} cannot be read") from None
    except OSError as fault:
        raise IoFailure(f"{path} cannot be read: {fault.strerror}") from None
    faults: list[str] = []
    networks: list[Network] = []
    if source.text.lstrip().startswith("{") and not _is_object(source.text):
        document = _json(source, faults)
        networks = [n for n in (_network(document, source, faults),) if n] if document is not None else []
    else:
        for node, document in _manifests(source, faults):
            if network := _attachment_definition(node, document, source, directory, faults):
                networks.append(network)
        if not networks and not faults:
            faults.append(f"{path}: holds neither a CNI network (JSON) nor a NetworkAttachmentDefinition")
    if faults:
        raise _refusal(path, faults)
    return networks


def _is_object(text: str) -> bool:
    """Whether JSON text is a Kubernetes object, as `kubectl get -o json` prints it."""
    try:
        return "apiVersion" in json.loads(text)
    except ValueError:
        return False


def _json(source: Source, faults: list[str]) -> dict[str, Any] | None:
    try:
        document = json.loads(source.text)
    except json.JSONDecodeError as fault:
        offset, text = _plainly(fault)
        faults.append(f"{source.at(offset)}: not JSON: {text}")
        return None
    except RecursionError:
        faults.append(f"{source.path}: not JSON: nested too deeply")
        return None
    if not isinstance(document, dict):
        faults.append(f"{source.at(0)}: want a JSON object")
        return None
    return document


def _plainly(fault: json.JSONDecodeError) -> tuple[int, str]:
    """Where JSON is wrong, and how: as the parser says, or better for what people most often get wrong."""
    before = fault.doc[: fault.pos + 1].rstrip("}] \t\r\n")
    behind = fault.doc[len(before) :].lstrip()[:1]
    if before.endswith(",") and behind in ("}", "]"):  # Python 3.13 points at the comma, older ones behind it
        return len(before) - 1, f"remove the comma before {behind}"
    return fault.pos, fault.msg[0].lower() + fault.msg[1:]


def _manifests(source: Source, faults: list[str]) -> Iterator[tuple[yaml.Node, Any]]:
    """The NADs of a YAML file, those inside a List too; objects of other kinds are passed over."""
    try:
        loader = yaml.SafeLoader(source.text)
    except yaml.YAMLError as fault:  # a character that YAML does not have
        faults.append(f"{source.path}: not YAML: {str(fault).splitlines()[0]}")
        return
    try:
        while loader.check_node():
            node: Any = loader.get_node()
            document = loader.construct_document(node)
            if not isinstance(document, dict):
                continue
            if document.get("kind") == "List" and isinstance(document.get("items"), list):
                items = next(v for k, v in node.value if k.value == "items")
                yield from (p for p in zip(items.value, document["items"], strict=True) if _is_nad(p[1]))
            elif _is_nad(document):
                yield node, document
    except yaml.MarkedYAMLError as fault:
        mark = fault.problem_mark or fault.context_mark
        place = f"{source.path}:{mark.line + 1}:{mark.column + 1}" if mark else source.path
        faults.append(f"{place}: not YAML: {fault.problem or fault}")
    except (yaml.YAMLError, ValueError, RecursionError) as fault:
        faults.append(f"{source.path}: not YAML: {fault}")
    finally:
        loader.dispose()


def _is_nad(document: Any) -> bool:
    return isinstance(document, dict) and document.get("kind") == "NetworkAttachmentDefinition"


def _attachment_definition(
    node: yaml.Node, document: dict[str, Any], source: Source, directory: str, faults: list[str]
) -> Network | None:
    def place(keys: Keys) -> str:
        found = descend(node, keys)
        return f"{source.path}:{found.start_mark.line + 1}:{found.start_mark.column + 1}"

    nad = validate(NetworkAttachmentDefinition, document, place, faults)
    if nad is None:
        return None
    known = len(faults)
    network = None
    if not nad.spec.config.strip():
        network = _named(nad.metadata.name, directory, place(()), faults)
    else:
        inner = source.scalar(descend(node, ("spec", "config")))
        config = _json(inner, faults)
        if config is not None:
            if not config.get("name"):  # Multus gives it the NAD's
                config["name"] = nad.metadata.name
            network = _network(config, inner, faults, of_nad=True)
    for i in range(known, len(faults)):
        faults[i] += f" (NAD {nad.metadata.name})"
    if network is None:
        return None
    full = f"{nad.metadata.namespace}/{nad.metadata.name}" if nad.metadata.namespace else nad.metadata.name
    return replace(network, nad=full, resource_name=(nad.metadata.annotations or {}).get(RESOURCE_NAME, ""))


def _named(name: str, directory: str, place: str, faults: list[str]) -> Network | None:
    """The network of a NAD without a config: a conflist or configuration of its name in net.d."""
    for extensions in _EXTENSIONS[:2]:
        for path in _files(directory, extensions):
            try:
                networks = read(path, directory)
            except CniError:
                continue
            if networks and networks[0].name == name:
                return networks[0]
    faults.append(f"{place}: spec.config is empty, and {directory} has no network of the name {name}")
    return None


def _network(document: dict[str, Any], source: Source, faults: list[str], of_nad: bool = False) -> Network | None:
    """The network of a conflist, or of a single configuration, which becomes a list of one as in libcni."""
    single = "plugins" not in document and member(document, "type") is not None
    if single:
        names = {"name": member(document, "name"), "cniVersion": member(document, "cniVersion")}
        document = {**{k: v for k, v in names.items() if v is not None}, "plugins": [document]}

    def place(keys: Keys) -> str:
        return source.at_key(keys[2:] if single and keys[:1] == ("plugins",) else keys)

    known = len(faults)
    configuration = validate(Configuration, document, place, faults, "plugins[0]." if single else "")
    if configuration is None:
        return None
    inline = zip(configuration.plugins or [], document.get("plugins") or [], strict=True)
    steps = [Step(plugin, written) for plugin, written in inline]
    if not single and not of_nad and not configuration.loadOnlyInlinedPlugins:
        steps += _more_steps(os.path.join(os.path.dirname(source.path), configuration.name), faults)
    if not steps:
        faults.append(f"{source.at_key(())}: has no plugins: want a list `plugins`, or `type` for a single plugin")
    if len(faults) > known:
        return None
    return Network(
        name=configuration.name,
        versions=configuration.versions,
        steps=tuple(steps),
        document=document,
        path=source.path,
        disable_check=configuration.disableCheck,
        disable_gc=configuration.disableGC,
    )


def _more_steps(folder: str, faults: list[str]) -> list[Step]:
    """The plugins that libcni 1.3 appends: one a file, from the directory of the network's name beside its file."""
    steps = []
    for path in _files(folder, (".conf",)):
        with open(path, encoding="utf-8", errors="replace") as file:
            source = Source(path, file.read())
        document = _json(source, faults)
        if document is None:
            continue
        plugin = validate(Plugin, document, source.at_key, faults)
        if plugin is not None:
            steps.append(Step(plugin, document))
    return steps


def _refusal(path: str, faults: list[str]) -> InvalidConfig:
    if len(faults) == 1:
        return InvalidConfig(faults[0])
    return InvalidConfig(f"{len(faults)} faults in {path}", "\n".join(faults))
