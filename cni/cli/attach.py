"""railcni attach, detach, check, gc, status: a network's verbs for a person at a prompt.

Defaults are cnitool's, its environment variables are read, and both keep their results in the same cache, so that one
can detach what the other has attached. Where a person needs more than a runtime does:

- A failed or interrupted attach is undone by a DEL along the chain. A runtime owes that DEL (SPEC.md, section 3), and
  at a prompt nobody else would send it. It is left out when the interface was there before: it is not ours to remove.
- What is attached already is not attached again; the message says how to detach it.
- detach and check take arguments and configuration from the cache, so they need not be told again, and find an
  attachment by its namespace, under whatever path and containerID it was made.
- gc collects what has lost its namespace. What is alive in any cache or record of this node is kept.
"""

from __future__ import annotations

import argparse
import io
import os
import socket
from collections.abc import Iterator
from contextlib import redirect_stderr
from typing import Any

from cni.cli import install, installed, networks, output, subcommand, target
from cni.cli.cache import Cache, Parameters
from cni.cli.executables import Executables
from cni.cli.failed import PluginFailed, StepsFailed
from cni.cli.networks import Network
from cni.cli.options import add_options
from cni.cli.places import is_alive
from cni.cli.runtime import Runtime
from cni.kernel import netns as namespaces
from cni.spec import result as results
from cni.spec.errors import CniError, InvalidConfig


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the five commands."""
    for name, run, needs_namespace, about in (
        ("attach", _attach, True, "attach a namespace to a network: ADD; a failed one is undone"),
        ("detach", _detach, True, "detach it: DEL, every step, whether it is attached or not"),
        ("check", _check, True, "ask whether the attachment is as it was made: CHECK"),
        ("gc", _collect, False, "remove what attachments to gone namespaces have left: DEL and GC"),
        (
            "status",
            _status,
            False,
            "ask the plugins whether they can attach: STATUS; without NETWORK: the installation",
        ),
    ):
        parser = subcommand.add(commands, name, about)
        takes_pod = run in (_detach, _check)
        add_options(parser, needs_namespace, needs_network=run is not _status, takes_pod=takes_pod)
        if run is _status:
            install.add_options(parser)
        parser.set_defaults(run=run, refuse=parser.error)


# --- the commands ---


def _attach(options: argparse.Namespace) -> int:
    runtime = _runtime(options)
    network = networks.find(options.network, options.conf_dir)
    if options.device_id:
        network = network.with_device(options.device_id)
    parameters = target.new(options, network)
    _refuse_second(runtime, network, parameters)
    version = runtime.negotiate(network)
    was_there = _has_link(parameters.netns, parameters.ifname)
    try:
        result = runtime.add(network, parameters, version)
    except BaseException as fault:
        if was_there:
            if isinstance(fault, CniError):
                fault.details += f"\n{parameters.ifname} was there before: nothing has been undone"
            raise
        _undo(runtime, network, parameters, fault)
        raise
    if options.output != "table":
        output.print_data(result, options.output)
    else:
        output.print_table(("interface", "mac", "mtu", "address", "gateway", "namespace"), _rows(result, parameters))
    return 0


def _detach(options: argparse.Namespace) -> int:
    _require_namespace(options)
    runtime = _runtime(options)
    network, parameters, known = target.existing(options, runtime.cache)
    runtime.delete(network, parameters)
    if options.output != "table":
        output.print_data({**_identity(network.name, parameters), "wasAttached": known}, options.output)
    else:
        before = "" if known else " (the cache did not know it)"
        output.console().print(f"{network.name} detached: {parameters.ifname} in {parameters.netns}{before}")
    return 0


def _check(options: argparse.Namespace) -> int:
    _require_namespace(options)
    runtime = _runtime(options)
    network, parameters, _ = target.existing(options, runtime.cache)
    runtime.check(network, parameters)
    skipped = " (disableCheck: its plugins were not asked)" if network.disable_check else ""
    if options.output != "table":
        output.print_data({**_identity(network.name, parameters), "checked": not network.disable_check}, options.output)
    else:
        where = f"{parameters.ifname} in {parameters.netns}"
        output.console().print(f"{network.name} is as it was attached: {where}{skipped}")
    return 0


def _collect(options: argparse.Namespace) -> int:
    runtime = _runtime(options)
    network = networks.find(options.network, options.conf_dir)
    entries = [e for e in runtime.cache.all() if e.network == network.name]
    stale = [e for e in entries if not is_alive(e.parameters.netns)]
    valid = list(target.living(network.name, runtime.cache))
    asked = runtime.collect(network, valid, stale)
    gone = [] if network.disable_gc else [e.parameters for e in stale]
    if options.output != "table":
        output.print_data(
            {
                "network": network.name,
                "asked": asked,
                "removed": [_identity(network.name, p) for p in gone],
                "kept": [_identity(network.name, p) for p in valid],
            },
            options.output,
        )
        return 0
    rows = [("removed", p) for p in gone] + [("kept", p) for p in valid]
    if rows:
        columns = ("", "interface", "container", "namespace")
        output.print_table(columns, [(done, p.ifname, p.container_id, p.netns) for done, p in rows])
    else:
        output.console().print(f"{network.name}: this node knows no attachment")
    if network.disable_gc:
        output.console().print(f"{network.name} has disableGC: nothing was collected")
    elif not asked:
        output.console().print(
            f"GC exists from cniVersion 1.1.0 on, {network.name} is older: its plugins were not asked"
        )
    return 0


def _status(options: argparse.Namespace) -> int:
    if not options.network:
        return installed.show(options)
    runtime = _runtime(options)
    network = networks.find(options.network, options.conf_dir)
    answers = runtime.status(network)
    if options.output != "table":
        shown = [
            {"plugin": s.type, "ready": not f, **({"error": f.document(network.versions[-1])} if f else {})}
            for s, f in answers
        ]
        output.print_data({"network": network.name, "plugins": shown}, options.output)
    else:
        rows = [
            (
                s.type,
                "ready" if not f else "not ready" if isinstance(f, PluginFailed) else "no answer",
                f and f.code,
                f and f.msg,
            )
            for s, f in answers
        ]
        output.print_table(("plugin", "status", "code", "message"), rows)
    return int(any(fault for _, fault in answers))


def _require_namespace(options: argparse.Namespace) -> None:
    if not options.netns and "/" not in options.container_id:
        options.refuse("NETNS is needed, or --container-id NAMESPACE/POD")


def _runtime(options: argparse.Namespace) -> Runtime:
    path = [os.path.abspath(p) for p in options.cni_path.split(":") if p]
    return Runtime(Executables(path), Cache(options.cache_dir))


def _refuse_second(runtime: Runtime, network: Network, parameters: Parameters) -> None:
    if runtime.cache.read(network.name, parameters) is not None:
        raise InvalidConfig(
            f"{network.name} is attached already as {parameters.ifname} to {parameters.netns}: "
            f"`railcni detach {network.name} {parameters.netns} -i {parameters.ifname}` first, or choose another --ifname"
        )


# --- what is there ---


def _has_link(netns: str, ifname: str) -> bool:
    try:
        namespace = namespaces.open_namespace(netns)
    except CniError:
        return False
    try:
        with namespace.entered():
            return socket.if_nametoindex(ifname) > 0
    except PermissionError:  # then nothing can have been made there either
        return True
    except OSError:
        return False
    finally:
        namespace.close()


def _undo(runtime: Runtime, network: Network, parameters: Parameters, fault: BaseException) -> None:
    """DEL after a failed ADD; what of it fails in its turn is reported beside the failure of the ADD."""
    try:
        with redirect_stderr(io.StringIO()):  # what plugins remark there would stand before the failure
            runtime.delete(network, parameters)
    except CniError as second:
        if not isinstance(fault, CniError):
            raise
        more = second.faults if isinstance(second, StepsFailed) else [second]
        more = [f for f in more if f.msg != fault.msg]  # a wrong configuration is wrong for DEL too
        if more:
            raise StepsFailed([fault, *more]) from None


# --- how it is shown ---


def _identity(network: str, parameters: Parameters) -> dict[str, Any]:
    return {
        "network": network,
        "containerID": parameters.container_id,
        "ifname": parameters.ifname,
        "netns": parameters.netns,
    }


def _rows(document: dict[str, Any], parameters: Parameters) -> Iterator[tuple[object, ...]]:
    """An interface a row, with its addresses; addresses of none come last."""
    result = results.parse(document, "the result")
    for index, interface in enumerate(result.interfaces):
        own = [a for a in result.ips if a.interface == index]
        yield (interface.name, interface.mac, interface.mtu or None, *_texts(own), interface.sandbox or "the host's")
    rest = [a for a in result.ips if a.interface is None or a.interface >= len(result.interfaces)]
    if rest:
        yield (parameters.ifname, None, None, *_texts(rest), parameters.netns)


def _texts(addresses: list[results.IPConfig]) -> tuple[str, str]:
    return ", ".join(a.address for a in addresses), ", ".join(a.gateway for a in addresses if a.gateway)
