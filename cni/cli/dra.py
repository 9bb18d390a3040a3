"""railcni dra: offers the node's RDMA NICs and virtual functions as devices of Kubernetes' Dynamic Resource Allocation (DRA).

The driver is cni/resources/dra. Its configuration is that of `railcni device-plugin`, and is read by cni/resources.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from cni.cli.device_plugin import CONFIG, read, serve, tell_unmade
from cni.cli.terminal import common, output, subcommand
from cni.cluster.audit.store import kubeconfig_of
from cni.resources.choose import Resource, resources
from cni.resources.dra import slices
from cni.resources.dra.slices import Device, device_class
from cni.resources.node import read_host, read_topology
from cni.shared.kernel.node import host_name

KUBELET = "/var/lib/kubelet"
LISTEN = "127.0.0.1:9110"
_COLUMNS = ("device", "resource", "NIC or function", "claims", "PCIe root", "NUMA node", "GPUs", "reason")


def register(commands: subcommand.Commands) -> None:
    """Add the command `dra` and its subcommands."""
    about = "offer RDMA NICs and virtual functions to pods by ResourceClaims (Dynamic Resource Allocation)"
    verbs = subcommand.add_group(commands, "dra", about)
    about = "on each node: publish the devices as ResourceSlices, and prepare the claims of pods, as a DRA driver of kubelet"
    run = subcommand.add(verbs, "run", about, ". It runs until SIGTERM, in the foreground.", run=_run)
    about = "show the devices that the node's ResourceSlices would have; with -o the ResourceSlices"
    show = subcommand.add(verbs, "show", about, run=_show, lists=True)
    about = "print the DeviceClasses of the configuration, by which pods ask for its resources, for kubectl apply"
    classes = subcommand.add(verbs, "classes", about, run=_classes, forms=("yaml", "json"))
    about = f"configList or resourceList, which `run` reads again after a change; default: {CONFIG}"
    for parser in (run, show, classes):
        common.add(parser, "config", about, action="append")
    for parser in (run, show):
        common.add(parser, "node", "this Node in Kubernetes; default: the host name", shown=False)
        common.add(parser, "root", "below it are sys, dev, proc and run", "/")
    common.listen(run, LISTEN)
    about = "kubelet's folder, which has plugins, plugins_registry and pod-resources"
    subcommand.option(run, "--kubelet-root", KUBELET, about, made=True)
    common.add(run, "kubeconfig", "default: the API server of this pod, by its service account", "", shown=False)


def _run(options: argparse.Namespace) -> int:
    options.kubeconfig = kubeconfig_of(options.kubeconfig)
    return serve("cni.resources.dra.driver", options)


def _show(options: argparse.Namespace) -> int:
    config, is_faulty = read(options)
    root = options.root.rstrip("/")
    host = read_host(root)
    found = resources(config.resources, host)
    publishable = [resource for resource in found if not slices.unpublishable(resource.name)]
    is_faulty |= len(publishable) < len(found) or any(resource.unchosen for resource in found)
    devices = slices.devices(publishable, host, read_topology(host, root), config.rails)
    if options.output == "table":
        output.print_table(_COLUMNS, _rows(found, devices))
    elif options.output == "name":
        output.print_data([{"device": device.name} for device in devices], "name")
    else:
        output.print_objects(slices.documents(devices, options.node or host_name(), 1), options.output)
    tell_unmade(config, found)
    return int(is_faulty)


def _rows(found: Sequence[Resource], devices: Sequence[Device]) -> list[Sequence[object]]:
    rows: list[Sequence[object]] = []
    for device in devices:
        of = {key.rpartition("/")[2]: next(iter(v.values())) for key, v in device.document["attributes"].items()}
        gpus = f"{of['gpuDistance']} {of['gpus']}" if "gpus" in of else None
        place = of.get("pcieRoot"), of.get("numaNode"), gpus
        offer = device.offer
        rows.append((device.name, device.resource.name, offer.name, len(offer.ids), *place, offer.fault))
    for resource in found:
        unpublishable = slices.unpublishable(resource.name)
        reasons: list[tuple[str | None, str]] = [*resource.withheld.items()]
        reasons += [(None, why) for why in (resource.limit, resource.unchosen, unpublishable) if why]
        rows += [(None, resource.name, name, None, None, None, None, reason) for name, reason in reasons]
    return rows


def _classes(options: argparse.Namespace) -> int:
    config, is_faulty = read(options)
    classes = []
    for resource in config.resources:
        if fault := slices.unpublishable(resource.name):
            output.print_fault(fault)
            is_faulty = True
        else:
            classes.append(device_class(resource))
    output.print_objects(classes, options.output)
    return int(is_faulty)
