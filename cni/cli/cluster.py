"""railcni cluster, also called as `kubectl railcni`: shows all nodes and a cluster's leases, and runs doctor on a node.

The commands reach the cluster with kubectl's configuration and rights. `status` asks the agent of each node by `kubectl
exec`. `doctor` runs in a temporary pod, since an agent has no right to see a node's links. `ipam` has the commands of
`railcni ipam`, which read the API server directly.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

from cni import VERSION
from cni.cli import ipam, kubectl, pair
from cni.cli.terminal import common, output, subcommand
from cni.cluster.audit import in_use, lease_rules, silence
from cni.cluster.audit.model import Key
from cni.documents.tree import value_at
from cni.resources.containers import DRIVER
from cni.shared.spec import codec
from cni.shared.spec.errors import CniError, InvalidConfig, IoFailure
from ipam.leases import Lease
from ipam.stores.served import to_json

_AT_ONCE = 8  # nodes asked at the same time
_START = 180.0  # seconds within which the container of doctor must start
_RUN = 600.0  # seconds after which kubelet ends the container
_WEIGHT = {in_use.UNKNOWN: 0, in_use.ENDED: 1, in_use.USED: 2}  # the answer with the largest number counts
_STARTING = ("ContainerCreating", "PodInitializing", "ErrImagePull")  # the last becomes ImagePullBackOff if it persists
_ENTER = """\
import os, sys
try:
    os.chroot('/host')
    os.chdir('/')
    os.execv(sys.argv[1], sys.argv[1:])
except OSError as fault:
    print(f"{sys.argv[1]} of the node cannot be run: {fault.strerror}")
    sys.exit(125)
"""


def register(commands: subcommand.Commands) -> None:
    """Add the command `cluster` and its subcommands."""
    about = "look at a whole cluster: its nodes, faults and leases; also called `kubectl railcni`"
    parser = subcommand.add(commands, "cluster", about, prog=os.environ.get("RAILCNI_NAME"))
    kubectl.add_access(parser, before=True)
    verbs = parser.add_subparsers(metavar="COMMAND", title="commands")
    about = "show each node's version, attachments and faults; exit code 1: a fault"
    kubectl.add_access(subcommand.add(verbs, "status", about, run=_status, lists=True))
    about = "show the version of this command and of each node's railcni"
    kubectl.add_access(subcommand.add(verbs, "version", about, run=_version, shows=True))
    about = "find what keeps RDMA from working on a node or in a pod: `railcni doctor` in a temporary pod on the node"
    doctor = subcommand.add(verbs, "doctor", about, run=_doctor, shows=True)
    kubectl.add_access(doctor)
    about = "the name of a node, or a pod: it is examined on its node"
    doctor.add_argument("target", type=subcommand.pod, metavar="NODE|NAMESPACE/POD", help=about)
    common.add(doctor, "verbose")
    pair.add(verbs)
    for verb in ipam.register(verbs, anywhere=True):
        verb._option_string_actions["--kubeconfig"].default = argparse.SUPPRESS  # the option may stand before the verb
        kubectl.add_access(verb, files=False)
        verb.set_defaults(run=partial(_ipam, verb.get_default("run"), parser))


# --- status ---


def _version(options: argparse.Namespace) -> int:
    nodes = _ask_all(options, kubectl.agents(options).values())
    rows = [("this command", VERSION), *((f"node {one['node']}", one["version"] or one["faults"][0]) for one in nodes)]
    document = {"client": VERSION, "nodes": {one["node"]: one["version"] for one in nodes}}
    output.show_table(options.output, document, ("of", "version"), rows)
    return int(not all(one["version"] for one in nodes))


def _ask_all(options: argparse.Namespace, agents: Iterable[kubectl.NodeAgent]) -> list[dict[str, Any]]:
    """Run `railcni status` in the pod of each agent; return a status per node. If a run fails, the status of its node
    has the reason in `faults`."""

    def ask(agent: kubectl.NodeAgent) -> dict[str, Any]:
        command, places = ["status", "--output=json"], ("root", "plugin-dir", "to", "state-dir")
        try:
            return {**_faulty(agent.node, ""), **_answer(options, agent, command, *places)}
        except IoFailure as fault:
            return _faulty(agent.node, fault.msg)

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(ask, agents))


def _faulty(node: str, fault: str) -> dict[str, Any]:
    return {"node": node, "version": None, "healthy": False, "faults": [fault]}


def _status(options: argparse.Namespace) -> int:
    agents, nodes = kubectl.agents(options), _nodes(options)
    present = [agent for name, agent in agents.items() if name in nodes]  # `kubectl exec` needs the Node
    found = _ask_all(options, present)
    found += [_faulty(name, "no agent has this node") for name in sorted(nodes - agents.keys())]
    found += [_faulty(name, lease_rules.AGENT_LIVES.format(name)) for name in sorted(_deleted(options, nodes))]
    listed = _readable(options, "resourceclaims.resource.k8s.io", "--all-namespaces")  # a server before 1.34 has none
    given = [value_at(claim, "status", "allocation", "devices", "results") or () for claim in listed]
    claims = Counter(node for results in given for node in {d["pool"] for d in results if d["driver"] == DRIVER})
    for one in found:
        one["claims"] = claims[one["node"]]
    has_claims = any(one["claims"] for one in found)
    heads = ("node", "version", "health", "attachments", *["claims"] * has_claims, "what is wrong")
    output.show_table(options.output, found, heads, (_row(one, has_claims) for one in found))
    return int(not all(one["healthy"] for one in found))


def _nodes(options: argparse.Namespace) -> set[str]:
    found = kubectl.read(options, "get", "nodes", "--selector=kubernetes.io/os=linux")
    return {node["metadata"]["name"] for node in found["items"]}


def _readable(options: argparse.Namespace, *arguments: str) -> list[dict[str, Any]]:
    """The objects that `kubectl get` finds; [] if this user lacks the right or the server lacks the resource."""
    with suppress(IoFailure):
        return [*kubectl.read(options, "get", *arguments)["items"]]
    return []


def _deleted(options: argparse.Namespace, nodes: set[str]) -> set[str]:
    """The names of nodes that are not in `nodes`, but whose agent still has a Lease (coordination.k8s.io)."""
    leases = _readable(options, "leases.coordination.k8s.io", f"--namespace={silence.NAMESPACE}")
    return set(silence.nodes_of(leases)) - nodes


def _answer(
    options: argparse.Namespace, agent: kubectl.NodeAgent, command: list[str], *places: str, given: str = ""
) -> Any:
    """Run `railcni` with the arguments `command` in the agent's pod, with `given` on stdin; return its JSON output.
    `places` names options, such as "state-dir", to copy from the agent's arguments. Raises IoFailure if the output is
    not JSON."""
    if agent.fault:
        raise IoFailure(agent.fault)
    argv = ["railcni", *command, *filter(None, (agent.argument(name) for name in places))]
    place = (f"--namespace={agent.namespace}", agent.pod, "--container=agent")
    done = kubectl.execute(options, place, argv, "its agent", given)
    try:
        return codec.loads(done.stdout.encode())
    except ValueError:
        raise IoFailure(f"its agent does not answer: {kubectl.why(done.stderr)}") from None


def _row(one: dict[str, Any], has_claims: bool) -> Sequence[object]:
    attached, said = one.get("attachments") or {}, list(one["faults"])
    if gone := attached.get("gone"):
        count = output.counted(gone, "attachment")
        said.append(f"{count} without a namespace: the node's next calls end them, or `railcni ipam flush` there")
    health = output.styled("whole") if one["healthy"] else output.styled("faulty", "bold red")
    claims = [one["claims"]] if has_claims else []
    return one["node"], one["version"] or "", health, attached.get("live"), *claims, "\n".join(said)


# --- doctor ---


def _doctor(options: argparse.Namespace) -> int:
    namespace, _, pod = options.target.rpartition("/")
    options.only(not namespace, "for a node", "-v")
    agents, node = kubectl.agents(options), options.target
    if namespace:
        node = kubectl.read(options, "get", "pod", pod, f"--namespace={namespace}")["spec"].get("nodeName", "")
        if not node:
            raise InvalidConfig(f"pod {options.target} is on no node yet: `kubectl describe pod` says why")
    if node not in agents:
        if node in _deleted(options, _nodes(options)):
            raise InvalidConfig(lease_rules.AGENT_LIVES.format(node))
        raise InvalidConfig(f"no agent on node {node}: want one of {', '.join(agents)}, or NAMESPACE/POD")
    form = "table" if options.output == "table" else "json"
    of_pod, verbose = f"--pod={options.target}" * bool(namespace), "--verbose" * options.verbose
    manifest = doctor_pod(agents[node], [*filter(None, (of_pod, f"--output={form}", verbose))])
    place = (manifest["metadata"]["name"], f"--namespace={agents[node].namespace}")
    with kubectl.temporary(options, [manifest]):
        code = _exit_code(options, place)
        log = kubectl.said(options, "logs", *place, "--container=doctor")
    try:
        told = (
            None if form == "table" else {**codec.loads(log.encode()), "node": node}
        )  # the Node's name, not the host name
    except ValueError:
        code = -1
    if code not in (0, 1):
        last = (log.strip().splitlines() or [f"it ended with code {code}"])[-1]
        raise IoFailure(f"doctor did not run on node {node}: {last}. `kubectl railcni status` shows the node's version")
    output.show(options.output, told, lambda: sys.stdout.write(output.plain(log)))
    return code


def doctor_pod(agent: kubectl.NodeAgent, arguments: Sequence[str]) -> dict[str, Any]:
    """The manifest of a privileged pod on the agent's node. The pod changes its root directory to the host's, and runs
    the host's `railcni doctor`."""
    folder = (agent.argument("plugin-dir") or agent.argument("to")).partition("=")[2]
    installed = f"{folder or '/opt/cni/bin'}/railcni-bundle/current/bin/railcni"
    name = f"railcni-doctor-{secrets.token_hex(4)}"  # known even if `create` is interrupted
    label = {"app.kubernetes.io/name": "railcni-doctor"}
    container: dict[str, Any] = {"name": "doctor", "securityContext": {"privileged": True}}
    container["command"] = ["/opt/railcni/bin/python3", "-IS", "-c", _ENTER, installed, "doctor", *arguments]
    container["env"] = [{"name": "COLUMNS", "value": str(output.console().width)}]
    container["volumeMounts"] = [{"name": "host", "mountPath": "/host", "mountPropagation": "HostToContainer"}]
    host = {"nodeName": agent.node, "hostNetwork": True, "hostPID": True, "tolerations": [{"operator": "Exists"}]}
    volumes = [{"name": "host", "hostPath": {"path": "/"}}]
    metadata = {"name": name, "namespace": agent.namespace, "labels": label}
    return agent.made(metadata, _RUN, container, **host, volumes=volumes)


def _exit_code(options: argparse.Namespace, place: Sequence[str]) -> int:
    """Wait until the container `doctor` has ended; return its exit code. `place` has two arguments for kubectl: the
    pod's name, and --namespace=NAMESPACE. Raises IoFailure if the container does not start or end."""
    begin = time.monotonic()
    while True:
        status = kubectl.read(options, "get", "pod", *place)["status"]
        states: dict[str, Any] = {one["name"]: one["state"] for one in status.get("containerStatuses", ())}
        state = states.get("doctor", {})
        ended, waiting = state.get("terminated", {}), state.get("waiting", {})
        if status.get("phase") == "Failed" and status.get("reason"):  # evicted, or refused by kubelet
            why = status
        elif ended.get("reason") in ("Completed", "Error"):
            return int(ended["exitCode"])
        elif ended or waiting.get("reason", "ContainerCreating") not in _STARTING:
            why = ended or waiting
        elif time.monotonic() - begin > (_RUN if "running" in state else _START):
            why = waiting or {"reason": "kubelet does not start or end it", "message": "is the node ready?"}
        else:
            time.sleep(0.5)
            continue
        said = ": ".join(filter(None, (why.get("reason"), why.get("message", "").strip())))
        events = f"kubectl get events {place[1]} --field-selector=involvedObject.name={place[0]}"
        raise IoFailure(f"doctor did not run on the node: {said}. For more: `{events}`")


# --- ipam ---


def _ipam(run: subcommand.Run, cluster: subcommand.Parser, options: argparse.Namespace) -> int | None:
    """Run a command of `railcni ipam` for the cluster that kubectl uses; return its exit code."""
    options.only(False, "in `railcni ipam`, since this is kubectl's cluster", "--data-dir", "--flat-file")
    cluster.only(False, "with `status`, `doctor` and `test`, which ask the agents", "--agents-in")
    options.namespace = options.namespace or "kube-system"
    options.ask = partial(_ask_of_leases, options)
    with kubectl.access(options) as path:
        options.kubeconfig = path
        try:
            return run(options)
        except CniError as fault:  # the user knows no temporary file
            fault.msg = fault.msg.replace(f"kubeconfig {path}", "kubectl's configuration")
            raise


def _ask_of_leases(options: argparse.Namespace, leases: Sequence[Lease]) -> dict[Key, tuple[str, str]]:
    """Ask the agents whether leases are in use; return (state, reason) by lease. The state is ENDED, USED or UNKNOWN.
    If a lease names no node, all agents are asked about it."""
    agents = kubectl.agents(options) if leases else {}
    no_agent = kubectl.NodeAgent("", "", "", {}, "no agent has this node")

    def ask(name: str) -> list[tuple[Key, tuple[str, str]]]:
        """Ask the agent of node `name` about the leases that name this node or no node."""
        own = [lease for lease in leases if lease.node in ("", name)]
        given, agent = json.dumps([to_json(lease) for lease in own]), agents.get(name, no_agent)
        try:
            answers = _answer(options, agent, ["ipam", "in-use"], "root", "state-dir", given=given) if own else []
        except IoFailure as fault:
            answers = [(in_use.UNKNOWN, fault.msg)] * len(own)
        return [(lease.identity, (state, why)) for lease, (state, why) in zip(own, answers, strict=True)]

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        answers = [one for answer in pool.map(ask, {*agents, *(lease.node for lease in leases)}) for one in answer]
    return dict(sorted(answers, key=lambda one: _WEIGHT[one[1][0]]))  # the last of several answers remains
