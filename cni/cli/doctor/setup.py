"""The CNI side of a node: plugins, networks in net.d, the store of leases."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cni.cli.doctor.finding import ADVICE, FAULT, NOTE, OK, UNKNOWN, Observation
from cni.cli.warm import Workers
from cni.library import lint
from cni.library.audit import store
from cni.library.documents import networks
from cni.library.installation import layout
from cni.library.installation.layout import NAMES
from cni.shared import policy
from cni.shared.spec.errors import CniError
from ipam import flatfile
from ipam.stores.base import READ

_OF_INTEREST = (*NAMES, "ib-sriov", "ipoib", "ipvlan", "nv-ipam", "multus", "multus-shim")
_PLUGIN_SECONDS = 10  # for an answer to VERSION; ours take 0.01. A busy node is not an unhealthy one
_SLOW_SECONDS = 1.0  # an ADD asks a store several times
_VERSION = re.compile(r"\b(?:version|plugin|railcni|whereabouts)[: ]\s*(v?\d[^\s,;(]*|unknown)", re.IGNORECASE)


@dataclass(frozen=True)
class InstalledPlugin:
    """An executable in a plugin folder: whose it is ("railcni", "another's"), what it says its version is ("" for
    nothing), the newest CNI version that it speaks; or its `fault`, or that it did not answer in time (`late`)."""

    path: str
    whose: str
    version: str = ""
    speaks: str = ""
    fault: str = ""
    late: bool = False


@dataclass(frozen=True)
class NetworkFile:
    """A file of net.d: its networks' names, the types of their plugins, their masters and devices; and what
    `railcni nad lint` finds in it."""

    path: str
    names: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    masters: tuple[str, ...] = ()
    faults: tuple[lint.Diagnostic, ...] = ()


@dataclass(frozen=True)
class Reached:
    """The store that the node's flat file names ("" for none); seconds until it answered, or why it did not."""

    store: str
    seconds: float = 0.0
    fault: str = ""


def plugins(folders: Sequence[str]) -> list[InstalledPlugin]:
    """The plugins in `folders` that have to do with RDMA networks, each asked for its versions."""
    found = []
    for folder in folders:
        ours = layout.read(folder).ours if os.path.isdir(folder) else frozenset()
        for name in _OF_INTEREST:
            path = os.path.join(folder, name)
            if os.path.lexists(path):
                found.append(_plugin(path, name in ours))
    return found


def _plugin(path: str, ours: bool) -> InstalledPlugin:
    """Go's say of themselves when they are called without a verb (skel of containernetworking/cni), those that have
    nothing to say there with --version (rdma, multus-shim)."""
    try:
        about = _run([path], {})
        answer = _run([path], {"CNI_COMMAND": "VERSION"})
        version = _VERSION.search(about) or _VERSION.search(_run([path, "--version"], {}))
    except subprocess.TimeoutExpired:
        return InstalledPlugin(path, "railcni" if ours else "another's", late=True)
    except OSError as fault:
        return InstalledPlugin(path, "railcni" if ours else "another's", fault=f"cannot be run: {fault.strerror}")
    ours = ours or "railcni" in about
    speaks = re.findall(r"\d+\.\d+\.\d+", answer.partition("supportedVersions")[2])
    newest = max(speaks, key=lambda v: [int(n) for n in v.split(".")], default="")
    silent = "" if newest else "answers nothing to VERSION: no CNI plugin, or one for another processor"
    return InstalledPlugin(path, "railcni" if ours else "another's", version[1] if version else "", newest, silent)


def _run(command: Sequence[str], environ: dict[str, str]) -> str:
    given = b'{"cniVersion": "1.0.0"}'
    done = subprocess.run(command, env=environ, input=given, capture_output=True, timeout=_PLUGIN_SECONDS, check=False)
    return (done.stdout + done.stderr).decode("utf-8", "replace")


def check_plugins(found: Sequence[InstalledPlugin], folders: Sequence[str]) -> Iterator[Observation]:
    if not found:
        where = f"in {', '.join(folders)}" if folders else "found: this node has no plugin folder"
        yield Observation(NOTE, "CNI plugins", f"none of {', '.join(_OF_INTEREST)} {where}")
    for plugin in found:
        if plugin.fault:
            yield Observation(FAULT, plugin.path, plugin.fault, "a plugin that answers VERSION", "install it anew")
        elif plugin.late:
            yield Observation(UNKNOWN, plugin.path, f"no answer to VERSION in {_PLUGIN_SECONDS} s: a busy node?")
        else:
            version = f", version {plugin.version}" if plugin.version else ""
            yield Observation(OK, plugin.path, f"{plugin.whose}{version}, CNI up to {plugin.speaks}")


def check_workers(found: Sequence[Workers]) -> Iterator[Observation]:
    if not found:
        yield Observation(OK, "warm workers", "none at the moment: they begin with a call, and end when no call comes")
    for each in found:
        subject = f"warm workers of process {each.supervisor}"
        if each.workers:
            yield Observation(NOTE if each.fault else OK, subject, str(each))
        else:
            yield Observation(
                ADVICE,
                subject,
                str(each),
                "workers that answer",
                "run `railcni warm stop`; calls are served cold meanwhile",
            )


def network_files(directory: str) -> list[NetworkFile]:
    """The networks in `directory`, as a runtime finds them there."""
    try:
        names = sorted(os.listdir(directory))
    except (FileNotFoundError, NotADirectoryError):
        return []
    paths = [os.path.join(directory, n) for n in names if n.endswith((".conf", ".conflist", ".json"))]
    return [_network_file(path, directory) for path in paths if os.path.isfile(path)]


def _network_file(path: str, directory: str) -> NetworkFile:
    faults = tuple(lint.lint([path]))
    try:
        found = networks.read(path, directory)
    except CniError:  # the lint says it with all the others
        return NetworkFile(path, faults=faults)
    steps = [step for network in found for step in network.steps]
    masters = [str(step.document[key]) for step in steps for key in ("master", "device") if step.document.get(key)]
    ipam = [str((step.document.get("ipam") or {}).get("type") or "") for step in steps]
    types = dict.fromkeys([*(step.type for step in steps), *filter(None, ipam)])
    return NetworkFile(path, tuple(n.name for n in found), tuple(types), tuple(masters), faults)


def check_networks(files: Sequence[NetworkFile], folders: Sequence[str], directory: str) -> Iterator[Observation]:
    """Files with faults, and plugins that no folder has."""
    if not files:
        yield Observation(NOTE, directory, "no network is defined there (Multus keeps its own in the cluster's NADs)")
    for file in files:
        for fault in file.faults:
            level = FAULT if fault.severity == lint.ERROR else ADVICE
            text = f"{fault.key}: {fault.message}" if fault.key else fault.message
            yield Observation(level, fault.place, text, "", fault.fix or "correct the file")
        missing = [t for t in file.types if not any(os.path.isfile(os.path.join(f, t)) for f in folders)]
        if missing and folders:
            found = f"plugin {', '.join(missing)} of {', '.join(file.names)} is in none of {', '.join(folders)}"
            remedy = "install it, or remove the file: a runtime may take its first network for all pods"
            yield Observation(FAULT, file.path, found, "each plugin installed", remedy)
        elif not file.faults:
            yield Observation(OK, file.path, f"{', '.join(file.names)}: {', '.join(file.types)}")


def check_policy(masters: Sequence[str]) -> Iterator[Observation]:
    """That the node's policy can be read, and allows `masters`, those of the links that are there."""
    policy.forget()
    try:
        found = policy.current()
    except CniError as fault:
        yield Observation(
            FAULT, "policy", fault.msg, "a file that root alone can write", "correct it: each ADD asks it"
        )
        return
    refused = [name for name in masters if not any(policy.matches(one, name) for one in found.masters)]
    if refused:
        named = f"{', '.join(refused)} is not in its `masters` ({', '.join(found.masters) or 'none'})"
        yield Observation(
            FAULT, found.path, f"{named}: the next ADD is refused", "the masters of all networks", "add it"
        )
    else:
        yield Observation(
            OK, "policy", f"{found.path} allows it" if os.path.exists(found.path) else "none: the defaults hold"
        )


def reach(config: str = "") -> Reached:
    """Ask the store that a flat file names for its pools; by default the installed one."""
    if not config and not any(os.path.exists(path) for path in flatfile.PATHS):
        return Reached("")
    try:
        choice = store.of_flat_file(config)
    except CniError as fault:
        return Reached("the flat file's", fault=fault.msg)
    begun = time.monotonic()
    try:
        opened = choice.open(READ)
        opened.ready()
        opened.pools()
        return Reached(str(choice), time.monotonic() - begun)
    except CniError as fault:
        return Reached(str(choice), fault=fault.msg)


def check_store(reached: Reached) -> Iterator[Observation]:
    """A store that does not answer, or slowly."""
    if not reached.store:
        yield Observation(NOTE, "store of leases", "no flat file names one; a network's own ipam block may")
    elif reached.fault:
        remedy = "see the server, the kubeconfig's token and the network between: each ADD fails meanwhile"
        yield Observation(FAULT, f"store: {reached.store}", reached.fault, "it answers", remedy)
    elif reached.seconds > _SLOW_SECONDS:
        found = f"answered in {reached.seconds:.2f} s"
        yield Observation(ADVICE, f"store: {reached.store}", found, f"less than {_SLOW_SECONDS:g} s", "see its load")
    else:
        yield Observation(OK, f"store: {reached.store}", f"answered in {reached.seconds * 1000:.0f} ms")
