"""Networks and attachments as a node's Multus would have them."""

import json
import shutil
from pathlib import Path
from typing import Any

import yaml

from tests.faults.inject import KILL, Command, Injector, finished
from tests.lab.machine import Machine
from tests.node import ROOT, Pod, Reply

RANGE = {"type": "whereabouts", "range": "192.168.111.0/24", "datastore": "file"}
_FLAT_FILE = Path("/etc/cni/net.d/whereabouts.d/whereabouts.conf")


def nad(name: str) -> dict[str, Any]:
    """The configuration in the NAD conf/nad/`name`.yaml."""
    document = yaml.safe_load((ROOT / "conf" / "nad" / f"{name}.yaml").read_text())
    config: dict[str, Any] = json.loads(document["spec"]["config"])
    return config


def vf_net(address: str) -> dict[str, Any]:
    """A network for the device at this PCI address, as Multus makes it of what the device plugin gave to the pod."""
    base = {"cniVersion": "1.0.0", "name": "vf-net", "type": "host-device", "ipam": RANGE}
    return base | {"runtimeConfig": {"deviceID": address}}


def keep_leases_in_a_file() -> None:
    """The flat file by which a NAD that is a cluster's keeps its leases on this node."""
    _FLAT_FILE.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(ROOT / "conf" / "whereabouts.d" / "file-store.conf", _FLAT_FILE)


def call(machine: Machine, verb: str, config: dict[str, Any], pod: Pod, **more: Any) -> Reply:
    """Call the plugin of `config` for net1 of a pod of the namespace default, as Multus does."""
    args = f"IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME={pod.name};K8S_POD_INFRA_CONTAINER_ID=c-{pod.name}"
    how = {"container_id": f"c-{pod.name}", "args": args, "path": [machine.executables], **more}
    return machine.cni(config["type"], verb, config, netns=pod, **how)


def killed(machine: Machine, verb: str, config: dict[str, Any], pod: Pod, point: str) -> bool:
    """Call the plugin of `config` for net1 and kill it at `point`, such as sendto:3; whether it got as far as that."""
    environ = {"CNI_COMMAND": verb, "CNI_CONTAINERID": "c1", "CNI_IFNAME": "net1", "CNI_NETNS": pod.path}
    environ["CNI_PATH"] = str(machine.executables)
    with Injector(machine) as injector:
        command = Command(machine.executables / config["type"], environ, json.dumps(config).encode())
        return finished(injector.start(command, KILL, point)).killed
