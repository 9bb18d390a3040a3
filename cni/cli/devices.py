"""railcni device-plugin, dra and vfs: the node's RDMA NICs and virtual functions (VFs) as devices for pods.

The programs are in cni/resources/device_plugin and cni/resources/dra; both need the packages grpcio and protobuf. The
three commands share one configuration, which cni/resources reads. `device-plugin --show`, `dra show` and `vfs` need
neither kubelet nor gRPC.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from cni.cli import nad
from cni.cli.terminal import common, output, subcommand
from cni.cluster.audit.store import kubeconfig_of
from cni.documents.diagnostic import ERROR
from cni.resources.choose import Resource, resources
from cni.resources.config import Config
from cni.resources.dra import slices
from cni.resources.node import read_config, read_host, read_topology
from cni.resources.vfs import cards
from cni.resources.vfs.apply import apply
from cni.resources.vfs.plan import VfStep, plan
from cni.shared.kernel.node import host_name
from cni.shared.spec.errors import InvalidConfig

CONFIG = "/etc/railcni/device-plugin.json"
FOLDER = "/var/lib/kubelet/device-plugins"
PODS = "/var/lib/kubelet/pod-resources/kubelet.sock"
_OFFERED = ("resource", "NIC or function", "devices", "NUMA node", "device nodes", "reason")
_EMPTY = "no resource is offered"
_PUBLISHED = ("device", "resource", "NIC or function", "claims", "PCIe root", "NUMA node", "GPUs", "reason")
_CARDS = ("card", "netdev", "VF", "function", "driver", "netdev of the VF", "RDMA", "in use by")
_PLANNED = ("of", "what", "now", "then")


def register(commands: subcommand.Commands) -> None:
    """Add the commands `device-plugin`, `dra` and `vfs`."""
    about = "on each node: offer RDMA NICs and virtual functions to pods as resources, by kubelet's device plugin API"
    more = ". The program runs until SIGTERM, in the foreground."
    parser = subcommand.add(commands, "device-plugin", about, more, run=_run_plugin, lists=True)
    about = (
        "that of the RDMA shared device plugin (configList) or the SR-IOV device plugin (resourceList), VFs to"
        " make at the start (virtualFunctions, or SriovNetworkNodePolicy objects), or several of these;"
        f" read again after a change; default: {CONFIG}"
    )
    common.add(parser, "config", about, action="append")
    parser.add_argument("--cdi", action="store_true", help="pass devices by the Container Device Interface")
    common.listen(parser, "127.0.0.1:9109")
    common.add(parser, "kubelet-dir", "", FOLDER, made=True)
    about = "kubelet's socket, which shows whether another plugin serves a resource"
    subcommand.option(parser, "--pod-resources", PODS, about, "SOCKET")
    common.add(parser, "root", "below it are sys, dev, proc and run", "/")
    parser.add_argument("--show", action="store_true", help="print the devices to offer and the faults, and exit")
    _register_dra(commands)
    about = "show the virtual functions (VFs) of the node's NICs, and make those of a configuration"
    verbs = subcommand.add_group(commands, "vfs", about)
    for verb, run, text in (
        ("show", _show_vfs, "show the NICs that can have VFs, their VFs, and who uses each VF"),
        ("plan", _plan_vfs, "show what `apply` would do, and change nothing"),
        ("apply", partial(_plan_vfs, makes=True), "make the VFs; a NIC stays as it is if a VF in use would be removed"),
    ):
        one = subcommand.add(verbs, verb, text, run=run, shows=True, lists=verb == "show")
        if verb != "show":
            about = "its virtualFunctions, or SriovNetworkNodePolicy objects of sriov-network-operator in YAML or JSON"
            common.add(one, "config", f"{about}; - for stdin; default: {CONFIG}", action="append")
        common.add(one, "root", "below it are sys, dev and proc", "/")
        common.add(one, "kubelet-dir", "", FOLDER)


def _register_dra(commands: subcommand.Commands) -> None:
    about = "offer RDMA NICs and virtual functions to pods by ResourceClaims (Dynamic Resource Allocation)"
    verbs = subcommand.add_group(commands, "dra", about)
    about = "on each node: publish the devices as ResourceSlices, and prepare the claims of pods, as a DRA driver of kubelet"
    run = subcommand.add(verbs, "run", about, ". It runs until SIGTERM, in the foreground.", run=_run_dra)
    about = "show the devices that the node's ResourceSlices would have; with -o the ResourceSlices"
    show = subcommand.add(verbs, "show", about, run=_show_dra, lists=True)
    about = "print the DeviceClasses of the configuration, by which pods ask for its resources, for kubectl apply"
    classes = subcommand.add(verbs, "classes", about, run=_print_classes, forms=("yaml", "json"))
    about = f"configList or resourceList, which `run` reads again after a change; default: {CONFIG}"
    for parser in (run, show, classes):
        common.add(parser, "config", about, action="append")
    for parser in (run, show):
        common.add(parser, "node", "this Node in Kubernetes; default: the host name", shown=False)
        common.add(parser, "root", "below it are sys, dev, proc and run", "/")
    common.listen(run, "127.0.0.1:9110")
    about = "kubelet's folder, which has plugins, plugins_registry and pod-resources"
    subcommand.option(run, "--kubelet-root", "/var/lib/kubelet", about, made=True)
    common.add(run, "kubeconfig", "default: the API server of this pod, by its service account", "", shown=False)


# --- what all three share ---


def _serve(program: str, options: argparse.Namespace) -> int:
    """Run the module `program`, which loads gRPC; return its exit code. Raises InvalidConfig if gRPC is missing."""
    options.config = options.config or [CONFIG]
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # else gRPC prints a line for each connection that ends
    try:
        module = importlib.import_module(program)  # takes 0.2 s
    except ModuleNotFoundError as fault:
        remedy = "pip install grpcio protobuf, or use the image that `make image ARGS=--device-plugin` makes"
        raise InvalidConfig(f"the package of the module {fault.name} is missing: {remedy}") from None
    return int(module.run(options))


def _read(options: argparse.Namespace) -> tuple[Config, bool]:
    """Read the files of --config, and print the faults in them. Return (configuration, whether there is an error)."""
    config = read_config(options.config or [CONFIG])
    nad.print_findings(config.findings, sys.stderr)
    return config, any(finding.severity == ERROR for finding in config.findings)


def _tell_unmade(config: Config, found: Sequence[Resource]) -> None:
    """If a resource in `found` has no device, print how to make the virtual functions that the configuration wants."""
    if config.policies and any(resource.unchosen for resource in found):
        output.print_fault(
            "railcni: the configuration asks for virtual functions that are not there yet: `railcni vfs plan` shows the"
            " steps; `railcni vfs apply` makes them, and so does the device plugin when it starts"
        )


# --- device-plugin ---


def _run_plugin(options: argparse.Namespace) -> int:
    serving = ("--cdi", "--listen", "--log-level", "--kubelet-dir", "--pod-resources")
    options.only(options.show, "with --show", "-o", "-w", "-A")
    options.only(not options.show, "without --show", *serving)
    if not options.show:
        return _serve("cni.resources.device_plugin.plugin", options)
    config, is_faulty = _read(options)
    found = resources(config.resources, read_host(options.root.rstrip("/")))
    documents: list[dict[str, Any]] = []
    rows: list[Sequence[object]] = []
    for resource in found:
        offers = []
        for one in resource.offers:
            numa, nodes = ", ".join(map(str, one.numa_nodes)), [path for _, path in one.nodes]
            shown = " ".join(path.removeprefix("/dev/") for path in nodes)
            rows.append((resource.name, one.name, len(one.ids), numa, shown, one.fault))
            places = {"numaNodes": list(one.numa_nodes), "deviceNodes": nodes}
            offers.append({"name": one.name, "devices": len(one.ids), **places, "fault": one.fault})
        rows += [(resource.name, name, 0, None, None, reason) for name, reason in resource.withheld.items()]
        whys = filter(None, (resource.limit, resource.unchosen))
        rows += [(resource.name, None, resource.healthy, None, None, why) for why in whys]
        reasons = {"withheld": dict(resource.withheld), "limit": resource.limit, "unchosen": resource.unchosen}
        documents.append({"resource": resource.name, "healthy": resource.healthy, "offers": offers, **reasons})
    output.show_table(options.output, documents, _OFFERED, rows, empty=_EMPTY)
    _tell_unmade(config, found)
    return int(is_faulty or any(resource.unchosen for resource in found))


# --- dra ---


def _run_dra(options: argparse.Namespace) -> int:
    options.kubeconfig = kubeconfig_of(options.kubeconfig)
    return _serve("cni.resources.dra.driver", options)


def _show_dra(options: argparse.Namespace) -> int:
    config, is_faulty = _read(options)
    root = options.root.rstrip("/")
    host = read_host(root)
    found = resources(config.resources, host)
    publishable = [resource for resource in found if not slices.unpublishable(resource.name)]
    is_faulty |= len(publishable) < len(found) or any(resource.unchosen for resource in found)
    devices = slices.devices(publishable, host, read_topology(host, root), config.rails)
    if options.output == "table":
        output.print_table(_PUBLISHED, _published_rows(found, devices), empty=_EMPTY)
    elif options.output == "name":
        output.print_data([{"device": device.name} for device in devices], "name")
    else:
        output.print_objects(slices.documents(devices, options.node or host_name(), 1), options.output)
    _tell_unmade(config, found)
    return int(is_faulty)


def _published_rows(found: Sequence[Resource], devices: Sequence[slices.Device]) -> Iterator[Sequence[object]]:
    for device in devices:
        of = {key.rpartition("/")[2]: next(iter(v.values())) for key, v in device.document["attributes"].items()}
        gpus = f"{of['gpuDistance']} {of['gpus']}" if "gpus" in of else None
        place, offer = (of.get("pcieRoot"), of.get("numaNode"), gpus), device.offer
        yield device.name, device.resource.name, offer.name, len(offer.ids), *place, offer.fault
    for resource in found:
        unpublishable = slices.unpublishable(resource.name)
        reasons: list[tuple[str | None, str]] = [*resource.withheld.items()]
        reasons += [(None, why) for why in (resource.limit, resource.unchosen, unpublishable) if why]
        yield from ((None, resource.name, name, None, None, None, None, reason) for name, reason in reasons)


def _print_classes(options: argparse.Namespace) -> int:
    config, is_faulty = _read(options)
    faults = [fault for one in config.resources if (fault := slices.unpublishable(one.name))]
    for fault in faults:
        output.print_fault(fault)
    good = [one for one in config.resources if not slices.unpublishable(one.name)]
    output.print_objects([*map(slices.device_class, good)], options.output)
    return int(is_faulty or bool(faults))


# --- vfs ---


def _show_vfs(options: argparse.Namespace) -> None:
    found = cards.read(options.root.rstrip("/"), options.kubelet_dir)
    documents: list[dict[str, Any]] = []
    rows: list[Sequence[object]] = []
    for card in found.cards:
        own, vfs = card.function, []
        rows.append((own.id, ", ".join(own.netdevs), f"{len(card.vfs)} of {card.most}", None, own.driver))
        for number, vf in sorted(card.vfs.items()):
            user, rdma = found.uses.get(vf.id, ""), ", ".join(vf.verbs) or ("yes" if vf.has_rdma else "")
            rows.append((None, None, number, vf.id, vf.driver, ", ".join(vf.netdevs), rdma, user))
            names = {"netdevs": list(vf.netdevs), "rdma": list(vf.verbs), "usedBy": user}
            vfs.append({"number": number, "function": vf.id, "driver": vf.driver, **names})
        about = {"card": own.id, "netdevs": list(own.netdevs), "driver": own.driver}
        documents.append({**about, "most": card.most, "vfs": vfs})
    empty = "no card here can have VFs: its firmware or the BIOS may have SR-IOV switched off"
    output.show_table(options.output, documents, _CARDS, rows, empty=empty)


def _plan_vfs(options: argparse.Namespace, makes: bool = False) -> int:
    """Print the steps that make the configured VFs; if `makes`, carry them out. Return the exit code."""
    config, faulty = _read(options)
    if not config.policies and not faulty:
        output.print_fault("railcni: the configuration asks for no VFs: add virtualFunctions, or name another file")
    root = options.root.rstrip("/")
    steps: list[VfStep] = []
    if makes:
        refused = list(apply(config.policies, root, options.kubelet_dir, steps.append))
    else:
        found = plan(config.policies, cards.read(root, options.kubelet_dir))
        steps, refused = list(found.steps), list(found.refused)
    rows = [(step.place, step.what, step.now, step.then) for step in steps]
    if options.output != "table":
        documents = [dict(zip(_PLANNED, row, strict=True)) for row in rows]
        output.print_data({"steps": documents, "refused": refused}, options.output)
    elif rows:
        output.print_table(_PLANNED, rows)
    elif not refused and not faulty:  # a file with faults may need further steps
        print("nothing to do")
    for reason in refused:
        output.print_fault(f"railcni: {reason}")
    return int(faulty or bool(refused))
