"""railcni test: tests a network between two nodes; without a network, the plugins on this machine (cni.cli.demo).

The cluster's own Multus attaches two pods of the agents' image to the network, on two nodes. In each pod, `kubectl
exec` runs `railcni test --inside`, which reads the MTU of the pod's link and pings the other pod. If the user names an
image for RDMA, a second container of each pod runs this image and measures RDMA. At the end the command deletes the
pods, and the leases of their addresses must be gone.
"""

from __future__ import annotations

import argparse
import json
import re
import secrets
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from subprocess import CompletedProcess
from typing import Any

from cni.cli import kubectl
from cni.cli.doctor import pods as links
from cni.cli.doctor.finding import FAULT, OK, SKIPPED, Observation, broken, ok
from cni.cli.ipam import options as stores
from cni.cli.terminal import common, output, subcommand
from cni.cluster.audit import model, snapshot
from cni.documents.networks import NETWORKS, RESOURCE_NAME
from cni.shared.spec import codec
from cni.shared.spec.errors import CniError, InvalidConfig, IoFailure
from cni.shared.spec.request import member
from ipam.ranges import parse_address

STATUS = "k8s.v1.cni.cncf.io/network-status"  # the annotation in which Multus lists a pod's interfaces
_LEFT = 600  # seconds after which kubelet ends pods that this command could not delete
_ANSWER = 90.0  # seconds for a program in a pod; the longest takes 60
_PAUSE = 0.5
_SHOWN = {OK: ("PASS", "green"), FAULT: ("FAIL", "bold red"), SKIPPED: ("skipped", "")}
_NOT_TRIED = 77
# The script for the container of the user's image. $1 is the server's address; in the server it is "".
_RDMA = f"""
for node in /dev/infiniband/uverbs*; do
    [ -e "$node" ] || {{ echo "the pod has no RDMA device: name the resource of one with --resource"; exit {_NOT_TRIED}; }}
    device=$(cat "/sys/class/infiniband_verbs/${{node##*/}}/ibdev")
    break
done
if command -v ib_write_bw >/dev/null; then exec timeout 60 ib_write_bw -R -d "$device" -F --report_gbits $1; fi
command -v rping >/dev/null || {{ echo "the image has neither ib_write_bw nor rping"; exit {_NOT_TRIED}; }}
if [ "$1" ]; then exec timeout 60 rping -c -a "$1" -C 10; else exec timeout 60 rping -s -C 10; fi
"""


@dataclass
class TestedPod:
    """One of the two pods: its name and node, and its interface and addresses as Multus reports them."""

    name: str
    node: str = ""
    ifname: str = ""
    addresses: Sequence[str] = ()

    def __str__(self) -> str:
        return f"{self.name} on {self.node}" if self.node else self.name


def register(commands: subcommand.Commands) -> None:
    """Add the command `test`."""
    about = "test a network between two nodes of a cluster; without NAD: test the plugins in namespaces of this machine"
    parser = _add(commands, about, is_alone=True)
    about = "not for people: runs in the test's pods, and answers what the command asks by `kubectl exec`"
    parser.add_argument("--inside", action="store_true", help=about)


def add(verbs: subcommand.Commands) -> None:
    """Add `test` to the commands of `railcni cluster`."""
    about = "test a network between two nodes: make a pod on each, ping, and measure RDMA"
    _add(verbs, about).set_defaults(inside=False)


def _add(commands: subcommand.Commands, about: str, is_alone: bool = False) -> subcommand.Parser:
    """Add the command `test`. If `is_alone`, it is no command of `railcni cluster`, and its network may be left out."""
    parser = subcommand.add(commands, "test", about, run=_run, shows=True)
    about = "a NetworkAttachmentDefinition; the pods are in its namespace; default namespace: `default`"
    count = "?" if is_alone else None
    parser.add_argument("network", nargs=count, metavar="[NAMESPACE/]NAD", type=subcommand.pod, help=about)
    about = "given once: both pods run on it; given twice: one pod runs on each; default: two nodes that the scheduler chooses"
    common.add(parser, "node", about, action="append")
    about = "also measure RDMA: the pods' image, with a shell, and with ib_write_bw or rping"
    subcommand.option(parser, "--image", "", about, "IMAGE")
    about = "a device plugin's resource; each pod asks for one of it; default: the resource that the NAD names"
    subcommand.option(parser, "--resource", "", about, "NAME", shown=False)
    about = "how long to wait until both pods are attached, and again until they are gone"
    subcommand.option(parser, "--timeout", 120.0, about, "SECONDS", type=subcommand.seconds)
    kubectl.add_access(parser, before=is_alone)
    return parser


def _run(options: argparse.Namespace) -> int:
    if options.inside:
        return _inside()
    only = ("--node", "--image", "--resource", "--timeout", "--context", "--kubeconfig", "--agents-in")
    options.only(options.network, "with the NAD of a cluster", *only)
    if options.network:
        found = _on_cluster(options)
    else:
        from cni.cli import demo  # loads pyroute2, which takes 0.2 s, for this command alone

        found = [*demo.run()]
    documents = [one.document() for one in found]
    output.show_table(options.output, documents, ("check", "result", "what"), map(_row, found))
    return int(any(one.level == FAULT for one in found))


# --- in a pod ---


def _inside() -> int:
    """Print, as JSON, the MTU of this pod's link and the results of pings to the other pod. stdin is JSON with the
    link's name, the link's addresses and the other pod's addresses."""
    try:
        asked = codec.loads(sys.stdin.read().encode())
        ifname = asked["ifname"]
        near = [(peer, own) for peer in asked["peers"] for own in asked["own"] if (":" in peer) == (":" in own)]
    except (ValueError, KeyError, TypeError):
        remedy = "a person runs `kubectl railcni test [NAMESPACE/]NAD`, which asks for it in its pods"
        raise InvalidConfig(f"--inside wants the question of another railcni on stdin: {remedy}") from None
    with open(f"/sys/class/net/{ifname}/mtu") as file:
        mtu = int(file.read())
    told = [found.document() for peer, own in dict(near).items() for found in links.ping(peer, own, mtu)]
    output.print_data({"mtu": mtu, "pings": told})
    return 0


# --- on the cluster ---


def _on_cluster(options: argparse.Namespace) -> list[Observation]:
    namespace, _, name = options.network.rpartition("/")
    nodes: list[str] = options.node or []
    if len(nodes) > 2:
        options.refuse("--node: want one or two nodes")
    kind, place = "network-attachment-definitions.k8s.cni.cncf.io", f"--namespace={namespace or 'default'}"
    nad = kubectl.read(options, "get", kind, name, place)
    agents = kubectl.agents(options)
    if unknown := [node for node in nodes if node not in agents]:
        raise InvalidConfig(f"no agent on node {unknown[0]}: want one of {', '.join(agents)}")
    with output.progress() as say:
        return _Test(options, nad, say).run(agents, nodes)


def _row(one: Observation) -> Sequence[object]:
    said = ": ".join(filter(None, (one.subject, one.found))) + (f". Remedy: {one.remedy}" if one.remedy else "")
    return one.check, output.styled(*_SHOWN[one.level]), said


def _container(name: str, command: list[str], capability: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "command": command, "securityContext": {"capabilities": {"add": [capability]}}, **more}


class _Test:
    """A test of the network `nad` by two pods in the NAD's namespace. `say` is called with the name of each step."""

    def __init__(self, options: argparse.Namespace, nad: dict[str, Any], say: Callable[[str], None]) -> None:
        self._options, self._nad, self._say = options, nad, say
        self._namespace: str = nad["metadata"]["namespace"]
        self._place = f"--namespace={self._namespace}"
        title = f"railcni-test-{secrets.token_hex(4)}"  # known even if `create` is interrupted
        self._pods = [TestedPod(f"{title}-{number}") for number in (1, 2)]

    def run(self, agents: dict[str, kubectl.NodeAgent], nodes: list[str]) -> list[Observation]:
        """Make the pods on `nodes`; if `nodes` is empty, the scheduler chooses. Return the finding of each check."""
        agent = agents[nodes[0]] if nodes else next(iter(agents.values()))
        wanted = (nodes * 2)[:2] or ["", ""]
        items = [self._manifest(agent, pod, node) for pod, node in zip(self._pods, wanted, strict=True)]
        self._say("creating two pods")
        with kubectl.temporary(self._options, items):
            end = time.monotonic() + self._options.timeout
            found = [self._attached(pod, end) for pod in self._pods]
            if not all(pod.addresses for pod in self._pods):
                return found
            leases = self._leases()
            found += [*self._link(), self._rdma()]
        return [*found, self._released(leases)]

    def _manifest(self, agent: kubectl.NodeAgent, pod: TestedPod, node: str) -> dict[str, Any]:
        """The manifest of `pod` on `node`. If `node` is "", the scheduler chooses a node without the other pod."""
        options, metadata = self._options, self._nad["metadata"]
        label = {"app.kubernetes.io/name": "railcni-test", "app.kubernetes.io/instance": pod.name.rpartition("-")[0]}
        waits = ["/opt/railcni/bin/python3", "-IS", "-c", "import signal; signal.pause()"]
        containers = [_container("test", waits, "NET_RAW")]
        if options.image:
            containers.append(_container("rdma", ["sh", "-c", f"sleep {_LEFT}"], "IPC_LOCK", image=options.image))
        if resource := options.resource or (metadata.get("annotations") or {}).get(RESOURCE_NAME):
            containers[-1]["resources"] = {"limits": {resource: "1"}}
        apart = {"labelSelector": {"matchLabels": label}, "topologyKey": "kubernetes.io/hostname"}
        apart = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}}
        where = {"nodeName": node, "tolerations": [{"operator": "Exists"}]} if node else {"affinity": apart}
        named = {"name": pod.name, "namespace": self._namespace, "labels": label}
        annotated = {**named, "annotations": {NETWORKS: model.nad_name(self._nad)}}
        return agent.made(annotated, 2 * options.timeout + _LEFT, *containers, **where)

    def _attached(self, pod: TestedPod, end: float) -> Observation:
        """Wait until the pod runs and Multus has attached it, at most until `end` (monotonic). Return a finding."""
        self._say(f"waiting until {pod.name} is attached")
        while True:
            document = kubectl.read(self._options, "get", "pod", pod.name, self._place)
            status, spec = document["status"], document["spec"]
            names = [one["name"] for one in spec["containers"] if one["name"] in ("test", "rdma")]
            why = next(filter(None, (kubectl.fault(document, name) for name in names)), "")
            if not why or status.get("phase") == "Failed" or time.monotonic() > end:
                break
            time.sleep(_PAUSE)
        network = model.nad_name(self._nad)
        texts = (document["metadata"].get("annotations") or {}).get(STATUS) or "[]"
        told: dict[str, Any] = next((one for one in codec.loads(texts.encode()) if one["name"] == network), {})
        pod.node, pod.ifname, pod.addresses = spec.get("nodeName", ""), told.get("interface", ""), told.get("ips") or ()
        if why:
            how = (f"--field-selector=involvedObject.name={pod.name}", "--sort-by=.metadata.creationTimestamp")
            events = kubectl.read(self._options, "get", "events", self._place, *how)["items"]
            last = events[-1].get("message") if events else ""  # from the scheduler, kubelet or Multus
            said = "; ".join(filter(None, (why, status.get("message"), last)))
            remedy = "`railcni nad lint` finds faults of the NAD, and `kubectl railcni doctor NODE` those of the node"
        elif pod.addresses:
            return ok(str(pod), f"{pod.ifname} has {', '.join(pod.addresses)}", check="attached")
        else:
            said = f"it runs, and Multus tells of no {'address' if pod.ifname else 'attachment'}"
            remedy = "see that Multus runs on the node, and that the NAD has `ipam`"
        return broken(str(pod), said, f"it runs, with an address of {network}", remedy, "attached")

    def _link(self) -> list[Observation]:
        """Check the MTU and the addresses of both pods, and ping each pod from the other pod."""
        config = codec.loads((self._nad["spec"].get("config") or "{}").encode())
        listed = member(config, "plugins")
        plugins = listed if isinstance(listed, list) else [config]
        mtus = [mtu for plugin in plugins if (mtu := member(plugin, "mtu"))]
        blocks, found, pings = model.parse_networks(self._nad), [], []
        for pod, other in zip(self._pods, reversed(self._pods), strict=True):
            outside = [a for a in pod.addresses if not any(block.holds(parse_address(a)) for block in blocks)]
            addresses = ok(str(pod), ", ".join(pod.addresses), check="addresses")
            if not blocks:
                addresses = replace(addresses, level=SKIPPED, found="the ipam of the NAD is not whereabouts")
            elif outside:
                remedy = "see whether another plugin of that type, or another NAD, has given it"
                addresses = broken(str(pod), ", ".join(outside), "in a range of the NAD", remedy, "addresses")
            self._say(f"{pod.name} pings {other.name}")
            told = self._answer(pod, {"ifname": pod.ifname, "own": [*pod.addresses], "peers": [*other.addresses]})
            mtus.append(told["mtu"])
            size = ok(str(pod), f"{pod.ifname} has {told['mtu']}", check="MTU")
            if told["mtu"] != mtus[0]:
                remedy = f"want {mtus[0]}: give the NAD an `mtu`, and the master on both nodes at least that MTU"
                size = replace(size, level=FAULT, healthy=f"{mtus[0]}", remedy=remedy)
            found += [addresses, size]
            for one in told["pings"]:
                fields = {key: value or "" for key, value in one.items()}
                pings.append(Observation(**{**fields, "check": f"ping from {pod.node}"}))
        return [*found, *pings]

    def _answer(self, pod: TestedPod, asked: dict[str, Any]) -> Any:
        """Run `railcni test --inside` in the pod, with `asked` as JSON on stdin; return the JSON output. Raises
        IoFailure if the output is not JSON."""
        done = self._execute(pod, "test", ["railcni", "test", "--inside"], json.dumps(asked))
        try:
            return codec.loads(done.stdout.encode())
        except ValueError:
            why = kubectl.why(done.stderr.strip().partition("\n")[0])
            remedy = "the agents must be of this version, as `kubectl railcni version` shows"
            raise IoFailure(f"pod {pod} does not answer: {why}; {remedy}") from None

    def _execute(self, pod: TestedPod, container: str, argv: list[str], given: str = "") -> CompletedProcess[str]:
        where = (self._place, pod.name, f"--container={container}")
        return kubectl.execute(self._options, where, argv, f"pod {pod}", given, _ANSWER)

    def _rdma(self) -> Observation:
        """Measure RDMA from the second pod to the first, with the programs in the user's image. Return a finding."""
        server, client = self._pods
        if not self._options.image:
            return Observation(SKIPPED, "", "--image names no image with ib_write_bw or rping", check="RDMA")
        self._say("measuring RDMA")
        measure = ["sh", "-c", _RDMA, "sh"]
        serving = ThreadPoolExecutor(1).submit(self._execute, server, "rdma", [*measure, ""])
        while True:  # until the server listens
            done = self._execute(client, "rdma", [*measure, server.addresses[0]])
            if done.returncode in (0, _NOT_TRIED) or serving.done():
                break
            time.sleep(_PAUSE)
        last = ((done.stdout + done.stderr).strip().splitlines() or [f"it ended with code {done.returncode}"])[-1]
        subject = f"from {client.node} to {server.node}"
        if done.returncode == _NOT_TRIED:
            return Observation(SKIPPED, subject, done.stdout.strip(), check="RDMA")
        if done.returncode:
            remedy = "`kubectl railcni doctor` of both nodes finds what keeps RDMA from working"
            return broken(subject, last, "the program ends with 0", remedy, "RDMA")
        rates = re.findall(r"^\s*\d+\s+\d+\s+\S+\s+([\d.]+)\s", done.stdout, re.M)
        return ok(subject, f"{rates[-1]} Gb/s by ib_write_bw" if rates else "10 exchanges by rping", check="RDMA")

    def _leases(self) -> list[str] | str:
        """The addresses that the cluster's stores lease to the pods; the reason as text if a store cannot be read."""
        names = [(self._namespace, pod.name) for pod in self._pods]
        try:
            with kubectl.access(self._options) as path:
                which = {"namespace": "kube-system", "flat_file": "", "data_dir": "", "pods": False}
                choices = stores.choose(argparse.Namespace(kubeconfig=path, **which))
                leases = [lease for choice in choices for lease in snapshot.read(choice).leases]
        except CniError as fault:
            return fault.msg
        return [lease.text for lease in leases if lease.pod_name in names]

    def _released(self, before: list[str] | str) -> Observation:
        """Wait until the pods and their leases are gone. `before` is the result of `_leases` while the pods ran."""
        if not before or isinstance(before, str):
            why = before or "the addresses are leased in no store of the cluster"
            return Observation(SKIPPED, "", str(why), check="released")
        self._say("waiting until the pods are gone and their addresses free")
        end, own = time.monotonic() + self._options.timeout, [pod.name for pod in self._pods]
        selector = "--selector=app.kubernetes.io/name=railcni-test"
        while True:
            there = kubectl.read(self._options, "get", "pods", self._place, selector)["items"]
            pods = [name for pod in there if (name := pod["metadata"]["name"]) in own]
            left = before if pods else self._leases()
            if not left:
                return ok("", ", ".join(before), check="released")
            if time.monotonic() > end:
                break
            time.sleep(_PAUSE)
        if isinstance(left, str):
            return Observation(SKIPPED, "", left, check="released")
        said = f"pods {', '.join(pods)} are still there" if pods else f"{', '.join(left)} still leased"
        ways = "the node's agent frees them, or `kubectl railcni ipam reclaim`"
        remedy = f"`kubectl railcni ipam audit` tells why; {ways}"
        return broken("", said, "the pods are gone, and their addresses are free", remedy, "released")
