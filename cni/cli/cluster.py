"""railcni cluster, which is also `kubectl railcni`: all nodes at once, the leases of a cluster, and doctor on a node.

kubectl reaches the cluster, with its own configuration and rights: `status` asks the agent of each node by `kubectl exec`,
and `doctor` runs in a pod that is made for it, since the agent has no right to see a node's links. `ipam` is the command of that
name, which reads the API server itself.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

from cni.cli import ipam
from cni.cli.terminal import output, subcommand
from cni.shared.kernel import files
from cni.shared.spec.errors import InvalidConfig, IoFailure

_AT_ONCE = 8  # nodes that are asked
_SECONDS = 60.0  # for the answer of one
_PULL = "180s"  # until the pod of doctor runs
_ENTER = "import os, sys; os.chroot('/host'); os.chdir('/'); os.execv(sys.argv[1], sys.argv[1:])"


@dataclass(frozen=True)
class Agent:
    """The agent of a node: `pod` and `namespace` its pod, `spec` that pod's, `fault` why it does not run ("": it does)."""

    node: str
    pod: str
    namespace: str
    spec: dict[str, Any]
    fault: str

    def argument(self, name: str) -> str:
        """The argument --NAME=VALUE of its container, whole; "" for none."""
        return next((a for a in self.spec["containers"][0]["args"] if a.startswith(f"--{name}=")), "")


def register(commands: subcommand.Commands) -> None:
    """Add `cluster` and its commands."""
    about = "show all nodes of a cluster and its leases, and run doctor on a node: `kubectl railcni`"
    parser = subcommand.add(commands, "cluster", about)
    parser.add_argument("--context", default="", help="a context of kubectl's configuration; default: the current one")
    subcommand.option(parser, "--agents-in", "railcni", "where the agents are", "NAMESPACE", type=subcommand.name)
    verbs = parser.add_subparsers(required=True, metavar="COMMAND", title="commands")
    about = "show the installation and the faults of each node"
    subcommand.add(verbs, "status", about, run=_status, shows=True)
    about = "run `railcni doctor` on a node, in a temporary pod"
    doctor = subcommand.add(verbs, "doctor", about, run=_doctor, shows=True)
    about = "a node, or a pod on its node"
    doctor.add_argument("target", type=subcommand.pod, metavar="NODE|NAMESPACE/POD", help=about)
    doctor.add_argument("-v", "--verbose", action="store_true", help="also show the checks that found no fault")
    for verb in ipam.register(verbs, anywhere=True):
        verb.set_defaults(run=partial(_ipam, verb.get_default("run"), parser))


# --- kubectl ---


def _kubectl(options: argparse.Namespace, *arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
    """Run kubectl with these arguments; IoFailure when it is missing."""
    if not shutil.which("kubectl"):
        raise IoFailure("kubectl is not on PATH: it is what reaches the cluster")
    context = [f"--context={options.context}"] if options.context else []
    return subprocess.run(["kubectl", *context, *arguments], input=given, capture_output=True, text=True)


def _read(options: argparse.Namespace, *arguments: str, given: str = "") -> Any:
    """What kubectl prints as JSON; IoFailure with what it says when it fails."""
    done = _kubectl(options, *arguments, given=given)
    if done.returncode:
        raise IoFailure(f"kubectl {arguments[0]} failed: {_last(done.stderr)}", done.stderr)
    return json.loads(done.stdout)


def _last(text: str) -> str:
    return (text.strip().splitlines() or ["it said nothing"])[-1]


def _agents(options: argparse.Namespace) -> dict[str, Agent]:
    """The agents by their nodes; InvalidConfig when there is none."""
    where = options.agents_in
    label = "app.kubernetes.io/name=railcni"
    found = _read(options, "get", "pods", f"--namespace={where}", f"--selector={label}", "--output=json")["items"]
    if not found:
        raise InvalidConfig(f"no agent in namespace {where}: install railcni, or name its namespace with --agents-in")
    agents = [
        Agent(pod["spec"].get("nodeName", ""), pod["metadata"]["name"], where, pod["spec"], _fault(pod))
        for pod in found
    ]
    return {agent.node: agent for agent in sorted(agents, key=lambda agent: agent.node) if agent.node}


def _fault(pod: dict[str, Any]) -> str:
    """Why the container `agent` of the pod does not run, "" when it does."""
    states = [*pod["status"].get("initContainerStatuses", ()), *pod["status"].get("containerStatuses", ())]
    if any(state["name"] == "agent" and "running" in state["state"] for state in states):
        return ""
    for state in states:
        for found in (state["state"].get("waiting"), state["state"].get("terminated")):
            if found and found.get("reason") not in (None, "Completed", "PodInitializing"):
                return f"{state['name']}: {found['reason']}: {found.get('message', '').strip()}".removesuffix(": ")
    return f"the agent does not run: its pod is {pod['status'].get('phase', 'Unknown')}"


# --- status ---


def _status(options: argparse.Namespace) -> int:
    agents = _agents(options)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        found = list(pool.map(partial(_ask, options), agents.values()))
    nodes = _read(options, "get", "nodes", "--selector=kubernetes.io/os=linux", "--output=json")["items"]
    for name in sorted({node["metadata"]["name"] for node in nodes} - agents.keys()):
        found.append({"node": name, "version": None, "healthy": False, "faults": ["no agent has this node"]})
    output.show(options.output, found, lambda: _print(found))
    return int(not all(one["healthy"] for one in found))


def _ask(options: argparse.Namespace, agent: Agent) -> dict[str, Any]:
    """`railcni status` of the agent's node."""
    told: dict[str, Any] = {"node": agent.node, "version": None, "healthy": False, "faults": [agent.fault]}
    if agent.fault:
        return told
    where = filter(None, (agent.argument(name) for name in ("root", "to", "state-dir")))
    argv = ["railcni", "status", "--output=json", *where]
    place = (f"--namespace={agent.namespace}", agent.pod, "--container=agent", f"--request-timeout={_SECONDS:g}s")
    done = _kubectl(options, "exec", *place, "--", *argv)
    try:
        return {**told, **json.loads(done.stdout)}
    except ValueError:
        return {**told, "faults": [f"its agent does not answer: {_last(done.stderr)}"]}


def _print(found: Sequence[dict[str, Any]]) -> None:
    rows = []
    for one in found:
        live = one["attachments"]["live"] if "attachments" in one else None
        health = output.styled("whole") if one["healthy"] else output.styled("faulty", "bold red")
        rows.append((one["node"], one["version"] or "", health, live, "\n".join(one["faults"])))
    output.print_table(("node", "version", "health", "attachments", "what is wrong"), rows)


# --- doctor ---


def _doctor(options: argparse.Namespace) -> int:
    namespace, _, pod = options.target.rpartition("/")
    options.only(not namespace, "for a node", "-v")
    agents = _agents(options)
    node = options.target
    if namespace:
        found = _read(options, "get", "pod", pod, f"--namespace={namespace}", "--output=json")
        node = found["spec"].get("nodeName", "")
        if not node:
            raise InvalidConfig(f"pod {options.target} is on no node yet: `kubectl describe pod` says why")
    if node not in agents:
        raise InvalidConfig(f"no agent on node {node}: want one of {', '.join(agents)}, or NAMESPACE/POD")
    arguments = [*([f"--pod={options.target}"] if namespace else []), f"--output={options.output}"]
    manifest = doctor_pod(agents[node], [*arguments, *(["--verbose"] if options.verbose else [])])
    made = _read(options, "create", "--filename=-", "--output=json", given=json.dumps(manifest))["metadata"]
    place = (made["name"], f"--namespace={made['namespace']}")
    try:
        done = _kubectl(options, "logs", "--follow", f"--pod-running-timeout={_PULL}", *place)
        output.console().file.write(done.stdout)
        return _exit_code(options, place, done)
    finally:
        _kubectl(options, "delete", "pod", *place, "--wait=false", "--ignore-not-found")


def doctor_pod(agent: Agent, arguments: Sequence[str]) -> dict[str, Any]:
    """The pod that runs doctor on the node of `agent`: privileged, in the host's file system, with the installed version."""
    folder = agent.argument("to").partition("=")[2]
    installed = f"{folder}/railcni-bundle/current/bin/railcni"
    container = agent.spec["containers"][0]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "generateName": "railcni-doctor-",
            "namespace": agent.namespace,
            "labels": {"app.kubernetes.io/name": "railcni-doctor"},
        },
        "spec": {
            "nodeName": agent.node,
            "hostNetwork": True,
            "hostPID": True,
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 0,
            "tolerations": [{"operator": "Exists"}],
            "imagePullSecrets": agent.spec.get("imagePullSecrets", []),
            "containers": [
                {
                    "name": "doctor",
                    "image": container["image"],
                    "imagePullPolicy": container.get("imagePullPolicy", "IfNotPresent"),
                    "command": ["/opt/railcni/bin/python3", "-IS", "-c", _ENTER, installed, "doctor", *arguments],
                    "env": [{"name": "COLUMNS", "value": str(output.console().width)}],
                    "securityContext": {"privileged": True},
                    "volumeMounts": [{"name": "host", "mountPath": "/host", "mountPropagation": "HostToContainer"}],
                }
            ],
            "volumes": [{"name": "host", "hostPath": {"path": "/"}}],
        },
    }


def _exit_code(options: argparse.Namespace, place: Sequence[str], logged: subprocess.CompletedProcess[str]) -> int:
    """That of the pod's container; IoFailure when it has not run."""
    for _ in range(20):
        status = _read(options, "get", "pod", *place, "--output=json")["status"]
        (state,) = [s["state"] for s in status.get("containerStatuses", ())] or [{}]
        if "terminated" in state:
            return int(state["terminated"]["exitCode"])
        if "running" not in state:
            break
        time.sleep(0.5)
    why = state.get("waiting", {})
    said = f"{why.get('reason', '')}: {why.get('message', '')}" if why else _last(logged.stderr)
    raise IoFailure(f"doctor did not run on the node: {said}")


# --- ipam ---


def _ipam(run: Callable[[argparse.Namespace], int], cluster: subcommand.Parser, options: argparse.Namespace) -> int:
    """Run a command of `railcni ipam` at the cluster of kubectl."""
    options.only(False, "in `railcni ipam`, since this is kubectl's cluster", "--data-dir", "--config", "--kubeconfig")
    cluster.only(False, "with `status` and `doctor`, which ask the agents", "--agents-in")
    options.namespace = options.namespace or "kube-system"
    access = _read(options, "config", "view", "--raw", "--minify", "--flatten", "--output=json")
    with tempfile.TemporaryDirectory(prefix="railcni-") as folder:  # of mode 0700
        files.write_whole(folder, "kubeconfig", json.dumps(access).encode())
        options.kubeconfig = f"{folder}/kubeconfig"
        return run(options)
