"""Call kubectl, so that railcni's commands for a cluster have the configuration and rights of kubectl."""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from cni.cli.terminal import common, output, subcommand
from cni.cluster.audit.store import kubeconfig_of
from cni.shared.kernel import files
from cni.shared.spec import codec
from cni.shared.spec.errors import InvalidConfig, IoFailure

SECONDS = 60.0  # for the answer of one node
Object = dict[str, Any]
Done = subprocess.CompletedProcess[str]
_LOGGED = re.compile(r"[IWEF]\d{4} [\d:.]+ +\d+ \S+\] ")  # a log line (k8s.io/klog), not kubectl's error


@dataclass(frozen=True)
class NodeAgent:
    """The agent of a node, with its pod. `fault` is the reason why the pod does not run; "" if it runs."""

    node: str
    pod: str
    namespace: str
    spec: dict[str, Any]
    fault: str

    @property
    def container(self) -> dict[str, Any]:
        """The container `agent` of the pod. The pod may have other containers, such as the device plugin's."""
        return next(one for one in self.spec["containers"] if one["name"] == "agent")

    def argument(self, name: str) -> str:
        """The argument --NAME=VALUE of the agent's container for the option `name`; "" if it is not given."""
        return next((a for a in self.container.get("args", ()) if a.startswith(f"--{name}=")), "")

    def made(self, metadata: Object, seconds: float, *containers: Object, **spec: Any) -> Object:
        """Return the manifest of a pod with `containers`. The agent's image is their default image. `spec` has further
        members of the pod's spec. kubelet ends the pod after `seconds`, even if this command was killed."""
        own = self.container
        image = {"image": own["image"], "imagePullPolicy": own.get("imagePullPolicy", "IfNotPresent")}
        spec["containers"] = [one if "image" in one else {**image, **one} for one in containers]
        spec["imagePullSecrets"] = self.spec.get("imagePullSecrets", [])
        ends = {"activeDeadlineSeconds": int(seconds), "restartPolicy": "Never", "terminationGracePeriodSeconds": 0}
        spec |= {**ends, "automountServiceAccountToken": False}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def add_access(parser: argparse.ArgumentParser, before: bool = False, files: bool = True) -> None:
    """Add --context, --agents-in and, if `files`, --kubeconfig. These options may stand before or after a subcommand.
    `before`: `parser` reads the options before the subcommand, and sets the defaults."""
    default, namespace = ("", "railcni") if before else (argparse.SUPPRESS, argparse.SUPPRESS)
    about = "a context of kubectl's configuration; default: the current one"
    subcommand.option(parser, "--context", default, about, "NAME", shown=False)
    if files:
        common.add(parser, "kubeconfig", "default: kubectl's", default, shown=False)
    about = "the namespace of the agents; default: railcni"
    subcommand.option(parser, "--agents-in", namespace, about, "NAMESPACE", shown=False, type=subcommand.name)


def run(options: argparse.Namespace, *arguments: str, given: str = "", timeout: float | None = None) -> Done:
    """Run kubectl with `given` on stdin. Ctrl-C does not end `kubectl create` or `kubectl delete`. Raises IoFailure if
    kubectl is missing, and TimeoutExpired after `timeout` seconds."""
    access = {"context": options.context, "kubeconfig": kubeconfig_of(options.kubeconfig)}
    if not shutil.which("kubectl"):
        raise IoFailure("kubectl is not on PATH: it is what reaches the cluster")
    argv = ["kubectl", *(f"--{name}={value}" for name, value in access.items() if value), *arguments]
    environ = {**os.environ, "KUBERC": "off", "KUBECTL_KUBERC": "false"}  # no user defaults (delete --interactive)
    how: dict[str, Any] = {"env": environ, "start_new_session": arguments[0] in ("create", "delete")}
    done = subprocess.run(argv, input=given, capture_output=True, text=True, timeout=timeout, **how)
    lines = done.stderr.splitlines(keepends=True)
    done.stderr = "".join(line for line in lines if not _LOGGED.match(line)) or done.stderr
    return done


def execute(
    options: argparse.Namespace, where: Sequence[str], argv: Sequence[str], who: str, given: str, seconds: float = 0
) -> Done:
    """Run `argv` by `kubectl exec`, with `given` on stdin. `where` has the arguments that select the container. Raises
    IoFailure, with `who` in the message, if the run takes longer than `seconds` (0: the default limit)."""
    seconds, stdin = seconds or SECONDS, ["--stdin"] if given else []
    try:  # kubectl's --request-timeout does not end an `exec`
        return run(options, "exec", *where, *stdin, "--", *argv, given=given, timeout=seconds)
    except subprocess.TimeoutExpired:
        raise IoFailure(f"{who} does not answer in {seconds:g} s: is the node ready?") from None


def read(options: argparse.Namespace, *arguments: str) -> Any:
    """Run kubectl with JSON output; return the document. Raises IoFailure if kubectl fails."""
    return codec.loads(said(options, *arguments, "--output=json").encode())


def said(options: argparse.Namespace, *arguments: str, given: str = "") -> str:
    """Run kubectl; return its stdout. Raises IoFailure, with kubectl's error, if kubectl fails."""
    done = run(options, *arguments, given=given)
    if done.returncode:
        before = done.stderr.strip().splitlines()[:-1]
        raise IoFailure(f"kubectl {arguments[0]} failed: {why(done.stderr)}", "\n".join(before))
    return done.stdout


def why(stderr: str) -> str:
    """Return the last line of kubectl's `stderr`. If a right, a user or a kubeconfig is missing, a remedy follows."""
    last = (stderr.strip().splitlines() or ["it said nothing"])[-1]
    if last == "error: EOF":  # kubectl asked for a user name and a password
        return "the context names no user: see `kubectl config view --minify`"
    # Without a current context kubectl uses localhost:8080; `kubectl config view --minify` has the other message.
    if "server localhost:8080 was refused" in last or "current-context must exist" in last:
        given = "give one with --kubeconfig FILE or KUBECONFIG, or a context with --context"
        return f"no kubeconfig names a current cluster: {given}"
    remedy = ": have this right granted to you, or run the command of `railcni` on the node"
    return last + remedy * ("(Forbidden)" in last)


def agents(options: argparse.Namespace) -> dict[str, NodeAgent]:
    """The agents by node name. Raises InvalidConfig if there is none."""
    where = options.agents_in
    label = "app.kubernetes.io/name=railcni"
    found = read(options, "get", "pods", f"--namespace={where}", f"--selector={label}")["items"]
    if not found:
        raise InvalidConfig(f"no agent in namespace {where}: install railcni, or name its namespace with --agents-in")
    agents = [
        NodeAgent(spec["nodeName"], pod["metadata"]["name"], where, spec, fault(pod, "agent"))
        for pod in found
        if (spec := pod["spec"]).get("nodeName") and any(one["name"] == "agent" for one in spec["containers"])
    ]
    agents.sort(key=lambda agent: (agent.node, not agent.fault))  # a node's running pod comes after its other pods
    return {agent.node: agent for agent in agents}


def fault(pod: dict[str, Any], name: str) -> str:
    """The reason why the container `name` of the pod does not run; "" if it runs."""
    states = [*pod["status"].get("initContainerStatuses", ()), *pod["status"].get("containerStatuses", ())]
    if any(state["name"] == name and "running" in state["state"] for state in states):
        return ""
    for state in states:
        for found in (state["state"].get("waiting"), state["state"].get("terminated")):
            if found and found.get("reason") not in (None, "Completed", "PodInitializing"):
                return f"{state['name']}: {found['reason']}: {found.get('message', '').strip()}".removesuffix(": ")
    return f"the {name} does not run: its pod is {pod['status'].get('phase', 'Unknown')}"


@contextmanager
def temporary(options: argparse.Namespace, pods: Sequence[dict[str, Any]]) -> Iterator[None]:
    """Create `pods`, all in one namespace; delete them when the context ends. Raises IoFailure if `create` fails."""
    names = [pod["metadata"]["name"] for pod in pods]
    try:
        try:
            said(options, "create", "--filename=-", given="\n".join(map(json.dumps, pods)))
        except IoFailure:
            names = names if len(names) > 1 else []  # if `create` of a single pod failed, no pod exists
            raise
        yield
    finally:
        if names:
            _delete(options, names, f"--namespace={pods[0]['metadata']['namespace']}")


def _delete(options: argparse.Namespace, names: Sequence[str], place: str) -> None:
    """Delete the pods `names`, and delay the effect of Ctrl-C until this is done. `place` is --namespace=NAMESPACE."""
    held = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
    try:
        wanted = ("--wait=false", "--ignore-not-found", f"--request-timeout={SECONDS:g}s")
        done = run(options, "delete", "pod", *names, place, *wanted)
        if done.returncode < 0:  # killed by a signal to the process group, before it had its own session
            done = run(options, "delete", "pod", *names, place, *wanted)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, held)
    if done.returncode:
        noun, are = ("pods", "are") if len(names) > 1 else ("pod", "is")
        command = f"kubectl delete pod {' '.join(names)} {place}"
        output.print_fault(f"railcni: {noun} {' and '.join(names)} {are} left: `{command}` removes it", done.stderr)


@contextmanager
def access(options: argparse.Namespace) -> Iterator[str]:
    """Yield the path of a temporary kubeconfig that gives clients other than kubectl the access that kubectl has."""
    found = read(options, "config", "view", "--raw", "--minify", "--flatten")
    # paths in a user's entry stay relative to the folder of the kubeconfig that has the entry
    given = options.kubeconfig or os.environ.get("KUBECONFIG") or os.path.expanduser("~/.kube/config")
    folders = [os.path.dirname(os.path.abspath(path)) for path in given.split(":") if path]
    for user in (one["user"] for one in found.get("users") or ()):
        for place, key in ((user, "tokenFile"), (user.get("exec") or {}, "command")):
            name = place.get(key) or ""
            if name and (key == "tokenFile" or "/" in name):  # a command without a slash is on PATH
                place[key] = next(filter(os.path.exists, (os.path.join(folder, name) for folder in folders)), name)
    with tempfile.TemporaryDirectory(prefix="railcni-") as folder:  # of mode 0700
        files.write_whole(folder, "kubeconfig", json.dumps(found).encode())
        yield f"{folder}/kubeconfig"
