"""railcni attach, detach, check, gc, status: the CNI verbs of a network, for a person at a prompt.

Defaults and environment variables are those of cnitool. railcni and cnitool keep their results in the same cache, so
that each can detach an attachment of the other. The commands do more than pass on the verb:

- If attach fails or is interrupted, it calls DEL for all plugins of the chain, which is a runtime's duty (SPEC.md,
  section 3). An interface that existed before the attach stays.
- attach refuses an attachment that exists already; the message says how to detach it.
- detach and check take arguments and configuration from the cache, so that the user need not repeat them. They find an
  attachment by its namespace, even if the attach named another path or containerID.
- gc removes the attachments whose namespace is gone. It keeps all others that a cache or record of this node lists.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import os
import socket
from collections.abc import Iterator
from contextlib import redirect_stderr
from dataclasses import replace
from typing import Any

from cni.cli import install
from cni.cli.terminal import common, output, subcommand
from cni.documents import NET_DIRECTORY, networks
from cni.node import runtime
from cni.node.inventory import attachments as recorded
from cni.node.inventory.places import NAMED_NAMESPACES, is_alive, is_of_pod, namespace_path
from cni.node.runtime.cache import DIRECTORY, Cache, CachedResult, Parameters
from cni.node.runtime.calls import Runtime
from cni.node.runtime.executables import Executables, PluginFailed, StepsFailed
from cni.shared.kernel import netns as namespaces
from cni.shared.kernel.links import Link, Rtnl
from cni.shared.spec import codec, parsing
from cni.shared.spec.errors import CniError, InvalidConfig
from cni.shared.spec.request import is_identifier
from cni.shared.spec.result import IPConfig

_MULTUS = "multus"  # the folder of Multus's own cache, below libcni's (Multus's option cniDir)


def register(commands: subcommand.Commands) -> None:
    """Add the commands `attach`, `detach`, `check`, `gc` and `status`."""
    for name, run, about in (
        ("attach", _attach, "attach a namespace to a network (ADD); a failed ADD is undone"),
        ("detach", _detach, "detach a namespace from a network (DEL), even if it seems not to be attached"),
        ("check", _check, "check whether an attachment is as ADD left it (CHECK)"),
        ("gc", _gc, "remove what attachments of deleted namespaces left (DEL and GC)"),
        ("status", _status, "ask the plugins whether they can attach (STATUS); without NETWORK: show the installation"),
    ):
        parser = subcommand.add(commands, name, about, run=run, shows=True)
        about = "the network's name in net.d, or the path of a conflist, conf or NAD file (PATH#NAME)"
        nargs = "?" if run is _status else None
        parser.add_argument("network", metavar="NETWORK", nargs=nargs, default="", help=about)
        if run not in (_gc, _status):
            _add_attachment(parser, takes_pod=run is not _attach)
        for place, variable, usual in (
            ("conf-dir", "NETCONFPATH", (NET_DIRECTORY,)),
            ("cni-path", "CNI_PATH", runtime.PLUGIN_DIRECTORIES),
        ):
            default = os.environ.get(variable) or ":".join(usual)
            common.add(parser, place, f"default: {variable}, then {', '.join(usual)}", default, shown=False)
        if run is _status:
            common.installation(parser)
            parser.set_defaults(cache_dir=DIRECTORY)
        else:
            common.add(parser, "cache-dir", "", DIRECTORY, made=run is _attach)


# --- the options: cnitool's environment variables are their defaults ---


def _add_attachment(parser: argparse.ArgumentParser, takes_pod: bool) -> None:
    """Add the options that name an attachment. `takes_pod`: --pod may be given in place of NETNS."""
    about = f"the namespace's path, or its name in {NAMED_NAMESPACES}"
    parser.add_argument("netns", metavar="NETNS", nargs="?" if takes_pod else None, default="", help=about)
    then = "the only one that is attached" if takes_pod else "net1 for a NAD, otherwise eth0"
    about = f"default: CNI_IFNAME, then {then}"
    common.add(parser, "ifname", about, os.environ.get("CNI_IFNAME", ""), shown=False)
    about, of = "default: as cnitool derives it from the namespace", parser.add_mutually_exclusive_group()
    common.add(of, "container-id", about, type=subcommand.container_or_pod if takes_pod else subcommand.name)
    if takes_pod:
        common.add(of, "pod", "NETNS may be left out")
    about, default = "arguments for every plugin; default: CNI_ARGS", os.environ.get("CNI_ARGS", "")
    parser.add_argument("--args", type=_pairs, default=default, metavar="K=V;K=V", help=about)
    about, default = "arguments for plugins with that capability; default: CAP_ARGS", os.environ.get("CAP_ARGS", "")
    parser.add_argument("--capability-args", type=_object, default=default, metavar="JSON", help=about)
    parser.add_argument("--device-id", default="", help="the device for a NAD that names none, as Multus passes it")


def _pairs(text: str) -> tuple[tuple[str, str], ...]:
    pairs = []
    for part in filter(None, text.split(";")):
        key, sign, value = part.partition("=")
        if not sign or not key.strip():
            raise argparse.ArgumentTypeError(f'"{part}" has no "=": write KEY=VALUE;KEY=VALUE')
        pairs.append((key.strip(), value.strip()))
    if pairs and "IgnoreUnknown" not in dict(pairs):  # else Go's plugins refuse a key that they do not know
        pairs.insert(0, ("IgnoreUnknown", "1"))
    return tuple(pairs)


def _object(text: str) -> dict[str, Any]:
    try:
        value = codec.loads(text.encode()) if text else {}
    except ValueError as fault:
        raise argparse.ArgumentTypeError(f"not JSON: {fault}") from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError("want a JSON object")
    return value


# --- the commands ---


def _attach(options: argparse.Namespace) -> None:
    runtime = _runtime(options)
    network = networks.find(options.network, options.conf_dir).with_device(options.device_id)
    parameters = _new(options, network)
    name, netns, ifname = network.name, parameters.netns, parameters.ifname
    if runtime.cache.read(name, parameters) is not None:
        remedy = f"`railcni detach {name} {netns} -i {ifname}` first, or choose another --ifname"
        raise InvalidConfig(f"{name} is attached already as {ifname} to {netns}: {remedy}")
    taken = {name for step in network.steps for name, is_taken in step.capabilities.items() if is_taken}
    if "--capability-args" in options.given and (left := sorted(options.capability_args.keys() - taken)):
        text = f"no plugin of {name} has the capability {', '.join(left)}"
        output.print_fault(f"railcni: {text}: these arguments are left out")
    version = runtime.negotiate(network)
    was_there = _has_link(netns, ifname)
    try:
        result = runtime.add(network, parameters, version)
    except BaseException as fault:
        if not was_there:
            _undo(runtime, network, parameters, fault)
        elif isinstance(fault, CniError):
            fault.details += f"\n{ifname} was there before: nothing has been undone"
        raise
    columns, least = ("interface", "mac", "mtu", "address", "gateway", "namespace"), ("namespace", "mac", "gateway")
    output.show_table(options.output, result, columns, _rows(result, parameters), least=least)


def _detach(options: argparse.Namespace) -> None:
    runtime, network, parameters, known = _existing(options)
    runtime.delete(network, parameters)
    before = "" if known else " (the cache did not know it)"
    text = f"{network.name} detached: {parameters.ifname} in {parameters.netns}{before}"
    key = parameters.container_id, parameters.ifname
    waiting = (a["pending"] for a in recorded.pending(network.name) if (a["containerID"], a["ifname"]) == key)
    if pending := next(waiting, None):
        text += f"; its addresses are not released yet: {pending}"
    document = {**_identity(network.name, parameters), "wasAttached": known, "pending": pending}
    output.show(options.output, document, lambda: output.console().print(text))


def _check(options: argparse.Namespace) -> int:
    runtime, network, parameters, _ = _existing(options)
    runtime.check(network, parameters)
    skipped = " (disableCheck: its plugins were not asked)" if network.disable_check else ""
    text = f"{network.name} is as it was attached: {parameters.ifname} in {parameters.netns}{skipped}"
    link = _link(parameters.netns, parameters.ifname)
    carrier = link and link.carrier
    document = {**_identity(network.name, parameters), "checked": not network.disable_check, "carrier": carrier}
    output.show(options.output, document, lambda: output.console().print(text))
    if carrier is False:  # a missing carrier is no fault of the attachment, so no plugin's CHECK reports it
        remedy = f"`railcni doctor --netns {parameters.netns}` tells why"
        output.print_fault(f"railcni: {parameters.ifname} has no carrier: its master or port is down; {remedy}")
    return int(carrier is False)


def _gc(options: argparse.Namespace) -> None:
    runtime = _runtime(options)
    network = networks.find(options.network, options.conf_dir)
    stale = [e for e in runtime.cache.all(network.name) if not is_alive(e.parameters.netns)]
    kept = _living(network.name, runtime.cache)
    asked = runtime.gc(network, kept, stale)
    of = {"removed": [] if network.disable_gc else [e.parameters for e in stale], "kept": kept}
    pending = recorded.pending(network.name)
    waiting = [{key: a[key] for key in ("network", "containerID", "ifname", "pending")} for a in pending]
    named = {done: [_identity(network.name, p) for p in several] for done, several in of.items()}
    rows = [(done, p.ifname, p.container_id, p.netns) for done, several in of.items() for p in several]
    if options.output != "table":
        output.print_data({"network": network.name, "asked": asked, **named, "pending": waiting}, options.output)
    elif rows:
        output.print_table(("", "interface", "container", "namespace"), rows)
    else:
        output.console().print(f"{network.name}: this node knows no attachment")
    if options.output == "table" and network.disable_gc:
        output.console().print(f"{network.name} has disableGC: nothing was collected")
    elif options.output == "table" and not asked:
        why = f"GC exists from cniVersion 1.1.0 on, {network.name} is older"
        output.console().print(f"{why}: its plugins were not asked")
    for attachment in pending:
        output.print_fault(f"railcni: {recorded.named(attachment)} is not released: {attachment['pending']}")


def _status(options: argparse.Namespace) -> int:
    options.only(options.network, "with NETWORK", "--conf-dir", "--cni-path")
    options.only(not options.network, "without NETWORK", "--plugin-dir", "--root", "--state-dir")
    if not options.network:
        return install.status(options)
    network = networks.find(options.network, options.conf_dir)
    plugins, rows = [], []
    for step, fault in _runtime(options).status(network):
        error = {"error": fault.document(network.versions[-1])} if fault else {}
        plugins.append({"plugin": step.type, "ready": not fault, **error})
        status = "ready" if not fault else "not ready" if isinstance(fault, PluginFailed) else "no answer"
        rows.append((step.type, status, fault and fault.code, fault and fault.msg))
    document = {"network": network.name, "plugins": plugins}
    output.show_table(options.output, document, ("plugin", "status", "code", "message"), rows)
    return int(any("error" in plugin for plugin in plugins))


def _runtime(options: argparse.Namespace) -> Runtime:
    folders = [os.path.abspath(p) for p in options.cni_path.split(":") if p]
    return Runtime(Executables(folders), Cache(options.cache_dir))


# --- the attachment that the options name ---


def _new(options: argparse.Namespace, network: networks.Network) -> Parameters:
    netns = namespace_path(options.netns)
    container, ifname = options.container_id or default_container_id(netns), "net1" if network.nad else "eth0"
    device = {"deviceID": options.device_id} if options.device_id else {}
    capabilities = {**device, **options.capability_args}
    return Parameters(container, netns, options.ifname or ifname, options.args, capabilities)


def _existing(options: argparse.Namespace) -> tuple[Runtime, networks.Network, Parameters, bool]:
    """Return the attachment that the options name as (runtime, network, parameters, whether it is cached)."""
    if "/" in (options.container_id or ""):  # the older spelling of --pod
        options.pod, options.container_id = options.container_id, None
    if not options.netns and not options.pod:
        options.refuse("NETNS is needed, or --pod [NAMESPACE/]POD")
    runtime, name = _runtime(options), options.network
    network: networks.Network | CniError
    try:
        network = networks.find(name, options.conf_dir)
        name = network.name
    except CniError as fault:  # the cache may have the network
        network = fault
    if options.pod:
        _choose_of_pod(options, runtime.cache, name)
    entry = _entry(options, runtime.cache, name) if is_identifier(name) else None
    if entry is not None:
        network = _as_attached(entry, network)
    if isinstance(network, CniError):
        raise network
    parameters = _new(options, network)
    if entry is not None:
        known, given = entry.parameters, parameters
        capabilities = {**known.capability_args, **given.capability_args}
        parameters = replace(known, args=given.args or known.args, capability_args=capabilities)
    return runtime, network.with_device(options.device_id), parameters, entry is not None


def _choose_of_pod(options: argparse.Namespace, cache: Cache, name: str) -> None:
    """Set containerID, interface and namespace in `options` to those of the pod's only attachment to `name`."""
    known = [(e.pod, e.parameters.container_id, e.parameters.ifname, e.parameters.netns) for e in cache.all(name)]
    known += [(a["pod"], a["containerID"], a["ifname"], a["netns"]) for a in recorded.found(name)]
    own = [rest for pod, *rest in known if is_of_pod(pod.partition("/")[::2], options.pod)]
    found = {(container, ifname): netns for container, ifname, netns in own}  # a record takes precedence over the cache
    chosen = [(*key, netns) for key, netns in found.items() if options.ifname in ("", key[1])]
    if len(chosen) != 1:
        there = ", ".join(f"{ifname} of container {container}" for container, ifname in sorted(found))
        state = f"it has {there}: choose with --ifname, or give the containerID" if there else "this node knows none"
        raise InvalidConfig(f"no single attachment of pod {options.pod} to {name}: {state}")
    options.container_id, options.ifname, netns = chosen[0]
    options.netns = options.netns or netns


def _entry(options: argparse.Namespace, cache: Cache, name: str) -> CachedResult | None:
    """The cached attachment to the network `name` with the namespace, containerID and interface in `options`; None if
    no attachment matches. Raises InvalidConfig if several match."""
    netns = namespace_path(options.netns)
    wanted = options.container_id or default_container_id(netns)

    def is_meant(known: Parameters) -> bool:
        is_there = known.container_id == wanted or (not options.container_id and _same(known.netns, netns))
        return is_there and options.ifname in ("", known.ifname)

    found = [entry for entry in cache.all(name) if is_meant(entry.parameters)]
    if len(found) > 1:  # a repeated detach must not detach a second attachment
        names = ", ".join(f"{e.parameters.ifname} ({e.parameters.container_id})" for e in found)
        how = "choose with --ifname and --container-id"
        raise InvalidConfig(f"{name} is attached to {netns} more than once: {how}: {names}")
    return found[0] if found else None


def _as_attached(entry: CachedResult, network: networks.Network | CniError) -> networks.Network | CniError:
    """The network with the configuration in the cached attachment `entry`. If this configuration cannot be read, return
    `network`: the network as it is now, or the error of the search for it."""
    try:
        kept = networks.from_document(codec.loads(entry.config), f"the cached configuration of {entry.network}")
    except (ValueError, CniError):
        return network
    if isinstance(network, CniError):
        return kept
    if kept.document == network.document:  # `network` also has the plugins that are in files of their own
        return network
    return replace(kept, disable_check=kept.disable_check or network.disable_check)


def default_container_id(netns: str) -> str:
    """The containerID that cnitool derives from a namespace's path."""
    return f"cnitool-{hashlib.sha512(netns.encode()).digest()[:10].hex()}"


def _same(a: str, b: str) -> bool:
    """Whether both paths lead to the same namespace. If a path does not exist, the paths themselves are compared."""
    try:
        return os.path.samefile(a, b)
    except OSError:
        return os.path.realpath(a) == os.path.realpath(b)


def _living(network: str, cache: Cache) -> list[Parameters]:
    """The attachments to `network`, in this node's caches and records, whose namespace still exists."""
    multus = Cache(os.path.join(cache.directory, _MULTUS))
    known = [Parameters(a["containerID"], a["netns"], a["ifname"]) for a in recorded.found(network) if a["alive"]]
    known = [*(entry.parameters for entry in (*cache.all(network), *multus.all(network))), *known]
    found: dict[tuple[str, str], Parameters] = {}
    for one in (one for one in known if is_alive(one.netns)):
        found.setdefault((one.container_id, one.ifname), one)
    return [*found.values()]


# --- links in the namespace ---


def _has_link(netns: str, ifname: str) -> bool:
    try:
        with namespaces.open_namespace(netns) as there, there.entered():
            return socket.if_nametoindex(ifname) > 0
    except PermissionError:  # an ADD by this user cannot have made a link there
        return True
    except (CniError, OSError):
        return False


def _link(netns: str, ifname: str) -> Link | None:
    """The link `ifname` of the namespace; None if there is no such link, or this user cannot enter the namespace."""
    try:
        with namespaces.open_namespace(netns) as there, there.entered():
            rtnl = Rtnl()
    except (CniError, OSError):
        return None
    with rtnl:
        return next((link for link in rtnl.links() if link.name == ifname), None)


def _undo(runtime: Runtime, network: networks.Network, parameters: Parameters, fault: BaseException) -> None:
    """Call DEL after an ADD that failed with `fault`. If the DEL fails for another reason, raises StepsFailed with
    `fault` and the errors of the DEL."""
    try:
        with redirect_stderr(io.StringIO()):  # else the messages of the plugins would precede the error of the ADD
            runtime.delete(network, parameters)
    except CniError as second:
        if not isinstance(fault, CniError):
            raise
        more = second.faults if isinstance(second, StepsFailed) else [second]
        if more := [f for f in more if f.msg != fault.msg]:  # a wrong configuration fails in DEL too
            raise StepsFailed([fault, *more]) from None


# --- how it is shown ---


def _identity(network: str, parameters: Parameters) -> dict[str, Any]:
    where = {"ifname": parameters.ifname, "netns": parameters.netns}
    return {"network": network, "containerID": parameters.container_id, **where}


def _rows(document: dict[str, Any], parameters: Parameters) -> Iterator[tuple[object, ...]]:
    """Yield a table row for each interface in an ADD result, and a last row for addresses without an interface."""
    result = parsing.parse(document, "the result")
    for index, interface in enumerate(result.interfaces):
        own = [a for a in result.ips if a.interface == index]
        mtu = interface.mtu or None  # results before CNI 1.1.0 have no MTU
        if not mtu and interface.sandbox and (link := _link(interface.sandbox, interface.name)):
            mtu = link.mtu
        yield (interface.name, interface.mac, mtu, *_texts(own), interface.sandbox or "the host's")
    if rest := [a for a in result.ips if a.interface is None or a.interface >= len(result.interfaces)]:
        yield (parameters.ifname, None, None, *_texts(rest), parameters.netns)


def _texts(addresses: list[IPConfig]) -> tuple[str, str]:
    return ", ".join(a.address for a in addresses), ", ".join(a.gateway for a in addresses if a.gateway)
