"""Checks of a node's software: plugins, networks in net.d, the store of leases, and limits that containers inherit.

RDMA locks the memory that it registers. A container inherits the runtime's limit of locked memory (proc(5),
/proc/PID/limits). The capability IPC_LOCK lifts the limit if it is effective in the container; Kubernetes makes it
effective only in containers that run as root.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass

from cni.cli.doctor.finding import ADVICE, FAULT, Observation, advice, broken, note, ok, unknown
from cni.cluster.audit import store as stores
from cni.documents import networks
from cni.documents.diagnostic import ERROR, Diagnostic
from cni.documents.reader import JSON
from cni.lint.file import lint
from cni.node.installation import layout
from cni.node.inventory import attachments as recorded
from cni.node.inventory.topology import text
from cni.shared import policy
from cni.shared.kernel.files import names_in
from cni.shared.spec.errors import CniError, InvalidConfig
from ipam import source
from ipam.stores import IN_CLUSTER
from ipam.stores.apiserver import Api
from ipam.stores.apiserver.faults import NotFound, Undefined
from ipam.stores.apiserver.resources import BINDINGS, EVERYWHERE
from ipam.stores.base import READ

_OF_INTEREST = (*layout.NAMES, "ib-sriov", "ipoib", "ipvlan", "nv-ipam", "multus", "multus-shim")
_PLUGIN_SECONDS = 10  # for an answer to VERSION, which takes 0.01 s, but longer on a busy node
_SLOW_SECONDS = 1.0  # an ADD asks a store several times
_VERSION = re.compile(r"\b(?:version|plugin|railcni|whereabouts)[: ]\s*(v?\d[^\s,;(]*|unknown)", re.IGNORECASE)
_RUNTIMES = ("containerd", "crio", "dockerd", "k3s-server", "k3s-agent", "rke2", "podman")
_ENOUGH = 1 << 30  # bytes of locked memory; one process may need tens of MiB for a message ring
_UNLIMITED = -1
_LIFT = "LimitMEMLOCK=infinity in the container runtime's systemd unit (of CRI-O, default_ulimits in its configuration)"
_IPC_LOCK = 14  # include/uapi/linux/capability.h
_ALL_USERS = 4294967295  # in uid_map of the host's user namespace
_NAMES = ("addressleases", "abandoned", "tokens", "names", "lost-nodes", "events")
_UNREAD = "store: the flat file's"
_NAMING = "the agent writes it, or copy one of conf/whereabouts.d; a network's own ipam block may name one"
POLICIES = {  # file below conf/kubernetes -> the bindings of admission policies that it has
    "admission.yaml": [f"railcni-{name}" for name in _NAMES],
    "dra/rbac.yaml": ["railcni-dra", "railcni-dra-claims"],
}


@dataclass(frozen=True)
class NetworkFile:
    """A network configuration file in net.d: the names of its networks, the types of their plugins, the host links that
    they name (`masters`), and the findings of `railcni nad lint`."""

    path: str
    names: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    masters: tuple[str, ...] = ()
    faults: tuple[Diagnostic, ...] = ()


def check_plugins(folders: Sequence[str]) -> Iterator[Observation]:
    """Check that the plugins for RDMA networks in `folders` answer VERSION."""
    there = [(folder, name) for folder in folders for name in _OF_INTEREST if os.path.lexists(f"{folder}/{name}")]
    for folder, name in there:
        yield _plugin(os.path.join(folder, name), name in layout.read(folder).ours)
    if not there:
        where = f"in {', '.join(folders)}" if folders else "found: this node has no plugin folder"
        yield note("CNI plugins", f"none of {', '.join(_OF_INTEREST)} {where}")


def _plugin(path: str, ours: bool) -> Observation:
    """Check that a plugin answers VERSION, and find its release. A Go plugin prints the release if it is called without
    a verb (skel of containernetworking/cni) or with --version (rdma, multus-shim). `ours`: the plugin is railcni's."""
    healthy, remedy = "a plugin that answers VERSION", "install it again"
    try:
        about = _run([path], {})
        answer = _run([path], {"CNI_COMMAND": "VERSION"})
        version = _VERSION.search(about) or _VERSION.search(_run([path, "--version"], {}))
    except subprocess.TimeoutExpired:
        return unknown(path, f"no answer to VERSION in {_PLUGIN_SECONDS} s: a busy node?")
    except OSError as fault:
        return broken(path, f"cannot be run: {fault.strerror}", healthy, remedy)
    speaks = re.findall(r"\d+\.\d+\.\d+", answer.partition("supportedVersions")[2])
    if not speaks:
        found = "answers nothing to VERSION: no CNI plugin, or one for another processor"
        return broken(path, found, healthy, remedy)
    whose = "railcni" if ours or "railcni" in about else "another's"
    newest = max(speaks, key=lambda v: [int(n) for n in v.split(".")])
    return ok(path, f"{whose}{f', version {version[1]}' if version else ''}, CNI up to {newest}")


def _run(command: Sequence[str], environ: dict[str, str]) -> str:
    given = b'{"cniVersion": "1.0.0"}'
    done = subprocess.run(command, env=environ, input=given, capture_output=True, timeout=_PLUGIN_SECONDS, check=False)
    return (done.stdout + done.stderr).decode("utf-8", "replace")


def network_files(directory: str) -> list[NetworkFile]:
    """Read the network files in `directory` that a runtime reads."""
    files = []
    for path in networks.files(directory, JSON):
        found, faults = [], tuple(lint([path]))
        with suppress(CniError):  # `faults` has this fault and all others
            found = networks.read(path, directory)
        steps = [step for network in found for step in network.steps]
        masters = [str(step.document[key]) for step in steps for key in ("master", "device") if step.document.get(key)]
        ipam = [str((step.document.get("ipam") or {}).get("type") or "") for step in steps]
        types = dict.fromkeys([*(step.type for step in steps), *filter(None, ipam)])
        files.append(NetworkFile(path, tuple(n.name for n in found), tuple(types), tuple(masters), faults))
    return files


def check_networks(files: Sequence[NetworkFile], folders: Sequence[str], directory: str) -> Iterator[Observation]:
    """Find faults in network files, and plugins that the files name but none of the plugin `folders` has."""
    if not files:
        yield note(directory, "no network is defined there (Multus keeps its own in the cluster's NADs)")
    for file in files:
        for fault in file.faults:
            level = FAULT if fault.severity == ERROR else ADVICE
            text = f"{fault.key}: {fault.message}" if fault.key else fault.message
            yield Observation(level, fault.place, text, "", fault.fix or "correct the file")
        missing = [t for t in file.types if not any(os.path.isfile(os.path.join(f, t)) for f in folders)]
        if missing and folders:
            found = f"plugin {', '.join(missing)} of {', '.join(file.names)} is in none of {', '.join(folders)}"
            remedy = "install it, or remove the file: a runtime may take its first network for all pods"
            yield broken(file.path, found, "each plugin installed", remedy)
        elif not file.faults:
            yield ok(file.path, f"{', '.join(file.names)}: {', '.join(file.types)}")


def check_policy(masters: Collection[str]) -> Iterator[Observation]:
    """Check that the node's policy, a file with the allowed masters and paths, can be read, and that it allows
    `masters`, the masters of the links that exist now."""
    policy.forget()
    try:
        found = policy.current()
    except CniError as fault:
        yield broken("policy", fault.msg, "a file that root alone can write", "correct it: each ADD asks it")
        return
    refused = [name for name in sorted(masters) if name and not any(policy.matches(one, name) for one in found.masters)]
    if refused:
        named = f"{', '.join(refused)} is not in its `masters` ({', '.join(found.masters) or 'none'})"
        yield broken(found.path, f"{named}: the next ADD is refused", "the masters of all networks", "add it")
    else:
        yield ok("policy", f"{found.path} allows it" if os.path.exists(found.path) else "none: the defaults hold")


def _store_of(config: str) -> stores.Choice | None:
    """The store of leases that the flat file (whereabouts.conf) at the path `config` names. The path "" means the
    installed flat file; return None if no flat file is installed."""
    return stores.of_flat_file(config) if config or _installed() else None


def _installed() -> str:
    """The path of the installed flat file, or ""."""
    return next(filter(os.path.exists, source.PATHS), "")


def check_store(config: str = "") -> Iterator[Observation]:
    """Check that the store of leases answers that the flat file at `config` names. If `config` is "", the installed
    flat file is read."""
    subject, begun = _UNREAD, time.monotonic()
    try:
        choice = _store_of(config)
        if choice is None:
            yield note("store of leases", f"no flat file names one: {_NAMING}")
            return
        for text in choice.notes:
            yield advice("flat file", text, "only known keys", "correct the key")
        if choice.unnamed:
            yield note("store of leases", f"{choice.unnamed} names none: {_NAMING}")
            return
        subject = f"store: {choice.kind}"
        subject = f"store: {choice}"  # the text of `choice` may need the kubeconfig
        opened = choice.open(READ)
        opened.ready()
        opened.pools()
    except CniError as fault:
        remedy = "see the server, the kubeconfig's token and the network between: each ADD fails meanwhile"
        if subject == _UNREAD and isinstance(fault, InvalidConfig):
            remedy = f"correct {config or _installed()}: an ADD whose network names no store fails meanwhile"
        yield broken(subject, fault.msg, "it answers", remedy)
        return
    seconds = time.monotonic() - begun
    if seconds > _SLOW_SECONDS:
        yield advice(subject, f"answered in {seconds:.2f} s", f"less than {_SLOW_SECONDS:g} s", "see its load")
    else:
        yield ok(subject, f"answered in {seconds * 1000:.0f} ms")


def check_admission(has_dra: bool, config: str = "") -> Iterator[Observation]:
    """Find missing ValidatingAdmissionPolicyBindings in the cluster that the flat file (whereabouts.conf) names.

    `has_dra`: check also the bindings for the DRA driver. Yields no finding if this user may not read bindings."""
    files = [file for file in POLICIES if has_dra or not file.startswith("dra/")]
    wanted = {name: file for file in files for name in POLICIES[file]}
    missing: dict[str, str] = {}  # the file of each missing binding
    try:
        choice = _store_of(config)
        if choice is None or choice.kind not in IN_CLUSTER:
            return
        with closing(Api(choice.kubeconfig, _PLUGIN_SECONDS)) as api:
            for name, file in wanted.items():
                try:
                    api.get(BINDINGS, name, namespace=EVERYWHERE)
                except NotFound:
                    missing[name] = file
    except Undefined:
        missing = {"the server knows no such policies": "admission.yaml"}
    except CniError:
        return  # no right to read bindings, or a fault that `check_store` reports
    if not missing:
        yield ok("admission policies", f"{len(wanted)} bindings")
        return
    named = " and ".join(f"conf/kubernetes/{file}" for file in dict.fromkeys(missing.values()))
    remedy = f"apply {named} on servers from 1.31 on; docs/security.md says what holds without it"
    healthy = "a node's tokens change what is the node's own alone"
    yield advice("admission policies", f"missing: {', '.join(missing)}", healthy, remedy)


def check_state(state: str) -> Iterator[Observation]:
    """Check, for root, that ADD can write its records into the directory `state`."""
    for fault in layout.state_faults(state) if os.geteuid() == 0 else ():
        yield broken("records", fault, "a directory that an ADD can write to", "mend it: each ADD fails meanwhile")


def check_pending(state: str) -> Iterator[Observation]:
    """Report the pending releases: addresses that a DEL could not release in their store of leases."""
    for attachment in recorded.pending(directory=state):
        remedy = "make that store reachable; `railcni ipam flush` tries again, and with --drop gives up"
        subject = f"pending release: {recorded.named(attachment)}"
        yield advice(subject, attachment["pending"], "it is released", remedy)


# --- runtime ---


def may_lock(process: str) -> bool:
    """Whether a process has the effective capability IPC_LOCK in the host's user namespace, the only one in which the
    kernel looks for it (ib_umem_get in drivers/infiniband/core/umem.c). `process` is a directory /proc/PID."""
    effective = int("".join(_status(process, "CapEff")) or "0", 16)
    return bool(effective >> _IPC_LOCK & 1) and text(f"{process}/uid_map").split() == f"0 0 {_ALL_USERS}".split()


def user_of(process: str) -> int | None:
    """The effective user ID of the process with the directory `process` in /proc; None if it cannot be read."""
    users = _status(process, "Uid")
    return int(users[1]) if users else None


def _status(process: str, key: str) -> list[str]:
    lines = text(f"{process}/status").splitlines()
    return next((line.split()[1:] for line in lines if line.startswith(f"{key}:")), [])


def memlock_of(process: str) -> int | None:
    """The soft limit of locked memory, in bytes, of the process with the directory `process` in /proc. -1 means no
    limit; None means that this user may not read the limit."""
    soft = re.search(r"^Max locked memory +(\S+)", text(f"{process}/limits"), re.MULTILINE)
    return None if soft is None else _UNLIMITED if soft[1] == "unlimited" else int(soft[1])


def check_runtimes(proc: str = "/proc") -> Iterator[Observation]:
    """Find running container runtimes whose limit of locked memory, which containers inherit, is low."""
    pids = sorted(int(name) for name in names_in(proc) if name.isdigit())
    running = [(pid, name) for pid in pids if (name := text(f"{proc}/{pid}/comm")) in _RUNTIMES]
    if not running:
        yield note("memlock", "no container runtime is seen to run here")
    who = "containers that do not run as root with the capability IPC_LOCK"
    remedy = f"{_LIFT}, or, for containers that run as root, the capability IPC_LOCK"
    for pid, name in running:
        yield _memlock(f"{name} ({pid})", memlock_of(f"{proc}/{pid}"), who, remedy)


def check_process(process: str, limit: int | None, may_lock: bool, user: int | None) -> Observation:
    """Check whether a process of a pod can lock enough memory. `limit`, `may_lock` and `user` are the results of
    `memlock_of`, `may_lock` and `user_of` for this process."""
    if may_lock:
        return ok(f"memlock of {process}", "unlimited, since it has the capability IPC_LOCK")
    remedy = f"{_LIFT}, or the capability IPC_LOCK in the container"
    if user:  # a capability that a container adds is effective for root alone: Kubernetes sets no ambient capabilities
        why = f"the capability IPC_LOCK does nothing for a process that is not root, as this one (user {user})"
        remedy = f"{_LIFT}; {why}"
    return _memlock(process, limit, "it", remedy)


def _memlock(process: str, limit: int | None, who: str, remedy: str) -> Observation:
    subject = f"memlock of {process}"
    if limit is None:
        return unknown(subject, "cannot be read")
    if limit == _UNLIMITED or limit >= _ENOUGH:
        return ok(subject, "unlimited" if limit == _UNLIMITED else _size(limit))
    found = f"{_size(limit)}: {who} cannot register more memory (ENOMEM)"
    return advice(subject, found, "unlimited", remedy)


def _size(count: int) -> str:
    return f"{count >> 20} MiB" if count >= 1 << 20 else f"{count >> 10} KiB"
