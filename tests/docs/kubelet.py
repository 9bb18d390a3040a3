"""What controllers, kubelet and Multus do with the pods of tests/docs/cluster.py, on the node in which it runs.

A DaemonSet gets its pod, a pod its network namespace and the networks of its annotation. A container of railcni's image runs the
command of this checkout, with the arguments and volumes of the pod, in a root that has /opt/railcni as the image has it and the
node's files only below its volumes. busybox is this machine's. Any other image has no program: its container only exists.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import subprocess
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.callers import THIN_MULTUS
from tests.node import BIN, INTERPRETER, page

if TYPE_CHECKING:
    from tests.docs.cluster import Cluster

Document = dict[str, Any]
NODE = "node-1"
NETWORKS, STATUS = "k8s.v1.cni.cncf.io/networks", "k8s.v1.cni.cncf.io/network-status"
PLUGINS = "/opt/cni/bin"
_PAUSE = 0.03
_CREATING = 1.0  # seconds in which no container of a pod has begun
# $1 is the root to be, $2 and $3 are folders that the program needs, then pairs of a folder and its mount up to --, then the
# program.
_ROOT = """
root=$1; mount -t tmpfs none "$root"
for top in /*; do
    case $top in /host | /opt | /run | /var | /etc) continue ;; esac
    if [ -L "$top" ]; then cp -P "$top" "$root/"; elif [ -d "$top" ]; then mkdir "$root$top" && mount --rbind "$top" "$root$top"; fi
done
mkdir -p "$root/etc" "$root/run" "$root/var" "$root/opt/railcni/bin"; ln -s ../run "$root/var/run"
for top in "$2" "$3"; do [ -d "$root$top" ] || { mkdir -p "$root$top"; mount --rbind "$top" "$root$top"; }; done
mkdir -p "$root/host$3"; mount --rbind "$3" "$root/host$3" # of a checkout the executables need this Python on the node
ln -s "$2/bin/railcni" "$4" "$root/opt/railcni/bin/"
shift 4
while [ "$1" != -- ]; do mkdir -p "$1" "$root$2"; mount --rbind "$1" "$root$2"; shift 2; done
shift
exec chroot "$root" "$@"
"""


class Kubelet:
    """Works in threads until the process ends. The plugins' log is that of a pod `multus` in kube-system."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster = cluster
        self.folder = folder
        self._known: set[str] = set()
        self._started: list[subprocess.Popen[bytes]] = []
        self._attached = threading.Event()  # the last pod with networks has them
        self._attached.set()
        subprocess.run(["mount", "--make-rshared", "/"], check=True)  # a container sees a namespace that is made later
        threading.Thread(target=self._look, daemon=True).start()

    def end(self) -> None:
        """Kill what runs in containers."""
        for process in self._started:
            process.kill()

    def log(self, namespace: str, pod: str, container: str) -> bytes:
        found = sorted(self.folder.glob(f"{namespace}.{pod}.{container or '*'}.log"))
        return b"".join(path.read_bytes() for path in found)

    def inside(self, namespace: str, name: str, container: str, argv: list[str]) -> list[str]:
        """The command line that runs `argv` in a pod."""
        pod = self.cluster.read("pods", namespace, name)
        assert pod, name
        spec = next(c for c in pod["spec"]["containers"] if container in ("", c["name"]))
        if "railcni" in spec["image"]:
            return self._container(pod, spec, argv)
        return ["ip", "netns", "exec", name, *(["busybox"] if "busybox" in spec["image"] else []), *argv]

    # --- controllers ---

    def _look(self) -> None:
        while True:
            try:
                for one in self.cluster.found("daemonsets"):
                    self._keep_its_pod(one)
                for pod in self.cluster.found("pods"):
                    if pod["metadata"]["uid"] not in self._known:
                        self._known.add(pod["metadata"]["uid"])
                        former, own = self._attached, threading.Event()
                        if pod["metadata"].get("annotations", {}).get(NETWORKS):
                            self._attached = own
                        threading.Thread(target=self._serve, args=(pod, former, own), daemon=True).start()
            except Exception:
                traceback.print_exc()
            time.sleep(_PAUSE)

    def _keep_its_pod(self, one: Document) -> None:
        """The DaemonSet has one pod of its template as it is now, and a revision for each template that it has had."""
        metadata, template = one["metadata"], one["spec"]["template"]
        revision = hashlib.sha256(json.dumps(template, sort_keys=True).encode()).hexdigest()[:8]
        namespace, name = metadata["namespace"], metadata["name"]
        head = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": name, "uid": metadata["uid"], "controller": True}
        pods = [p for p in self.cluster.found("pods") if head in p["metadata"].get("ownerReferences", ())]
        labels = {**template["metadata"].get("labels", {}), "controller-revision-hash": revision}
        for pod in pods:
            if pod["metadata"]["labels"] != labels and "deletionTimestamp" not in pod["metadata"]:
                pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
                self.cluster.keep("pods", namespace, pod)
        if not pods:
            self._note_revision(one, head, revision)
            document = {
                "metadata": {"name": f"{name}-{os.urandom(2).hex()}", "namespace": namespace, "labels": labels,
                             "ownerReferences": [head]},
                "spec": {**template["spec"], "nodeName": NODE},
            }  # fmt: skip
            self.cluster.keep("pods", namespace, document)
        ready = sum(p["metadata"]["labels"] == labels and is_ready(p) for p in pods)
        status = {
            "observedGeneration": metadata.get("generation", 1), "desiredNumberScheduled": 1,
            "currentNumberScheduled": len(pods),
            "updatedNumberScheduled": sum(p["metadata"]["labels"] == labels for p in pods), "numberReady": ready,
            "numberAvailable": ready,
        }  # fmt: skip
        if one.get("status") != status and self.cluster.read("daemonsets", namespace, name) == one:
            self.cluster.keep("daemonsets", namespace, {**one, "status": status})

    def _note_revision(self, one: Document, owner: Document, revision: str) -> None:
        namespace, name = one["metadata"]["namespace"], f"{one['metadata']['name']}-{revision}"
        number = 1 + max((r["revision"] for r in self.cluster.found("controllerrevisions")), default=0)
        template = {**one["spec"]["template"], "$patch": "replace"}
        metadata = {"name": name, "labels": one["spec"]["selector"]["matchLabels"], "ownerReferences": [owner]}
        data = {"spec": {"template": template}}
        self.cluster.keep("controllerrevisions", namespace, {"metadata": metadata, "data": data, "revision": number})

    # --- a pod ---

    def _serve(self, pod: Document, former: threading.Event, own: threading.Event) -> None:
        """Pods with networks get them one after the other (`former`, `own`), so that the pages can tell their addresses."""
        namespace, name = pod["metadata"].get("namespace", ""), pod["metadata"]["name"]
        if pod["spec"].get("nodeName", NODE) != NODE:
            return
        attached: list[list[str]] = []
        processes: dict[str, subprocess.Popen[bytes] | None] = {}
        try:
            pod["spec"]["nodeName"] = NODE
            self._write(pod, spec=pod["spec"], status=creating(pod))
            time.sleep(_CREATING)
            if not pod["spec"].get("hostNetwork"):
                subprocess.run(["ip", "netns", "add", name], check=True)
            if NETWORKS in pod["metadata"].get("annotations", {}):
                former.wait()
                self._attach_at_last(pod, attached)
                own.set()
            for container in pod["spec"].get("initContainers", ()):
                code = self._start(pod, container).wait()
                command = Path(PLUGINS, "railcni-bundle/current/bin/railcni")
                if not code and command.parent.exists() and not command.exists():
                    command.symlink_to(BIN / "railcni")  # a checkout installs none
                if code:
                    said = self.log(namespace, name, container["name"]).decode()
                    self._write(pod, status=status_of({container["name"]: code}, "Pending", False, said))
                    return
            for container in pod["spec"]["containers"]:
                has_program = any(image in container["image"] for image in ("railcni", "busybox"))
                command = [*container.get("command", ()), *container.get("args", ())]
                runs = has_program and command[:1] != ["sleep"]
                processes[container["name"]] = self._start(pod, container) if runs else None
            self._watch(pod, processes)
        except Exception:
            traceback.print_exc()
        finally:
            own.set()
            while not self._is_deleted(pod):
                time.sleep(_PAUSE)
            for process in filter(None, processes.values()):
                process.terminate()
                process.wait(20)
            self._detach(attached)
            if not pod["spec"].get("hostNetwork"):
                subprocess.run(["ip", "netns", "delete", name])
            self.cluster.drop("pods", namespace, name)

    def _watch(self, pod: Document, processes: dict[str, subprocess.Popen[bytes] | None]) -> None:
        while not self._is_deleted(pod):
            codes = {name: None if p is None else p.poll() for name, p in processes.items()}
            phase = "Running"
            if codes and None not in codes.values():
                phase = "Failed" if any(codes.values()) else "Succeeded"
            ready = phase == "Running" and all(map(answers, pod["spec"]["containers"]))
            debugs = pod["metadata"]["name"].startswith("node-debugger-")  # when it has ended kubectl prints its log
            if phase != "Running" or not debugs:
                self._write(pod, status=status_of(codes, phase, ready))
            if phase != "Running":
                return
            time.sleep(_PAUSE)

    def _is_deleted(self, pod: Document) -> bool:
        found = self.cluster.read("pods", pod["metadata"].get("namespace", ""), pod["metadata"]["name"])
        return found is None or "deletionTimestamp" in found["metadata"]

    def _write(self, pod: Document, status: Document | None = None, **parts: Any) -> None:
        """Write parts of the pod, as it is now, where they differ."""
        with self.cluster._lock:
            found = self.cluster.read("pods", pod["metadata"]["namespace"], pod["metadata"]["name"])
            changed = {**(found or {}), **parts, **({"status": status} if status else {})}
            if found and changed != found:
                self.cluster.keep("pods", pod["metadata"]["namespace"], changed)

    # --- its networks, as Multus attaches them ---

    def _attach_at_last(self, pod: Document, attached: list[list[str]]) -> None:
        while not self._is_deleted(pod):
            try:
                self._attach(pod, attached)
                return
            except RuntimeError as fault:
                self._detach(attached)
                self._write(pod, status=status_of({}, "Pending", False, str(fault)))
                time.sleep(10 * _PAUSE)

    def _attach(self, pod: Document, attached: list[list[str]]) -> None:
        metadata, shown = pod["metadata"], []
        for number, wanted in enumerate(networks(metadata.get("annotations", {}).get(NETWORKS, "")), 1):
            namespace, name = wanted.get("namespace", metadata["namespace"]), wanted["name"]
            nad = self.cluster.read("network-attachment-definitions", namespace, name)
            if nad is None:
                continue
            config, ifname = json.loads(nad["spec"]["config"]), wanted.get("interface", f"net{number}")
            asked = {key: wanted[key] for key in config.get("capabilities", ()) if key in wanted}
            if asked:
                config["runtimeConfig"] = asked
            attached.append([json.dumps(metadata), json.dumps(config), ifname])
            result = self._plugin("ADD", *attached[-1])
            ips = [one["address"].partition("/")[0] for one in result.get("ips", ())]
            shown.append({"name": f"{nad['metadata']['namespace']}/{name}", "interface": ifname, "ips": ips})
        if shown:
            annotations = {**metadata["annotations"], STATUS: json.dumps(shown)}
            self._write(pod, metadata={**metadata, "annotations": annotations})

    def _detach(self, attached: list[list[str]]) -> None:
        while attached:
            with contextlib.suppress(RuntimeError):
                self._plugin("DEL", *attached.pop())

    def _plugin(self, verb: str, metadata: str, config: str, ifname: str) -> Document:
        pod, network = json.loads(metadata), json.loads(config)
        container = pod["uid"].replace("-", "")
        environ = {
            **THIN_MULTUS.environ, "CNI_COMMAND": verb, "CNI_CONTAINERID": container,
            "CNI_NETNS": f"/run/netns/{pod['name']}", "CNI_IFNAME": ifname, "CNI_PATH": PLUGINS,
            "CNI_ARGS": THIN_MULTUS.args_of(pod["name"], container, pod["uid"], pod["namespace"]),
        }  # fmt: skip
        program = f"{PLUGINS}/{network['type']}"
        if not os.path.exists(program):
            raise RuntimeError(f"failed to find plugin {network['type']!r}")
        done = subprocess.run([program], input=config, env=environ, capture_output=True, text=True)
        with (self.folder / "kube-system.multus.multus.log").open("a") as log:
            log.write(done.stderr)
        if done.returncode:
            raise RuntimeError(f"{verb} of {ifname}: {done.stdout}")
        return dict(json.loads(done.stdout)) if done.stdout.strip() else {}

    # --- its containers ---

    def _start(self, pod: Document, container: Document) -> subprocess.Popen[bytes]:
        place = f"{pod['metadata']['namespace']}.{pod['metadata']['name']}.{container['name']}"
        argv = [*container.get("command", ()), *container.get("args", ())]
        if "railcni" in container["image"] and "command" not in container:
            argv = ["/opt/railcni/bin/railcni", *argv]  # the image's entrypoint
        argv = [word.replace("$(POD_IP)", "127.0.0.1") for word in argv]
        if "agent" in argv[:2]:
            argv += ["--api-server=" + self.cluster.url]
        with (self.folder / f"{place}.log").open("wb") as log:
            how: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
            process = subprocess.Popen(self._container(pod, container, argv), **how)
        self._started.append(process)
        return process

    def _container(self, pod: Document, container: Document, argv: list[str]) -> list[str]:
        """The command line that runs `argv` in the container's root."""
        if argv[0] == "railcni":
            argv = [f"/opt/railcni/bin/{argv[0]}", *argv[1:]]
        volumes = {volume["name"]: volume for volume in pod["spec"].get("volumes", ())}
        binds = []
        for mount in container.get("volumeMounts", ()):
            volume = volumes[mount["name"]]
            if "hostPath" in volume:
                binds += [volume["hostPath"]["path"], mount["mountPath"]]
            elif "configMap" in volume:
                name = volume["configMap"]["name"]
                found = self.cluster.read("configmaps", pod["metadata"]["namespace"], name)
                folder = self.folder / f"configmap-{name}"
                folder.mkdir(exist_ok=True)
                for file, text in (found or {}).get("data", {}).items():
                    (folder / file).write_text(text)
                binds += [str(folder), mount["mountPath"]]
            elif "projected" in volume:
                token = self.folder / "token"
                token.mkdir(exist_ok=True)
                (token / "token").write_text("token.of.the-pod")
                binds += [str(token), mount["mountPath"]]
        root = self.folder / "root"
        root.mkdir(exist_ok=True)
        environ = {one["name"]: one["value"] for one in container.get("env", ()) if "value" in one}
        environ |= {"NODENAME": NODE, "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "COLUMNS": environ.get("COLUMNS", "120")}
        python = self.folder / "python3"
        if not python.is_symlink():
            python.symlink_to(INTERPRETER)
        places = [str(root), str(BIN.parent), sys.base_prefix, str(python)]
        network = ["ip", "netns", "exec", pod["metadata"]["name"]]
        enter = network if NETWORKS in pod["metadata"].get("annotations", {}) else []
        enter += ["unshare", "--mount", "--propagation", "slave", "sh", "-ec", _ROOT, "sh", *places, *binds, "--"]
        return [*enter, "/usr/bin/env", "-i", *(f"{key}={value}" for key, value in environ.items()), *argv]


def networks(annotation: str) -> list[Document]:
    """The members of the annotation of a pod, which is a JSON list or has NAMESPACE/NAME@INTERFACE between commas."""
    if annotation.startswith("["):
        return list(json.loads(annotation))
    found = []
    for text in filter(None, map(str.strip, annotation.split(","))):
        place, _, interface = text.partition("@")
        namespace, _, name = place.rpartition("/")
        parts = {"namespace": namespace, "name": name, "interface": interface}
        found.append({key: value for key, value in parts.items() if value})
    return found


def is_ready(pod: Document) -> bool:
    conditions = pod.get("status", {}).get("conditions", ())
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def answers(container: Document) -> bool:
    """Whether the readiness probe of a container says that it is ready."""
    probe = container.get("readinessProbe", {}).get("httpGet")
    if not probe:
        return True
    ports = {one.get("name"): one["containerPort"] for one in container.get("ports", ())}
    try:
        return page(f"http://127.0.0.1:{ports[probe['port']]}{probe['path']}")[0] == 200
    except OSError:
        return False


def creating(pod: Document) -> Document:
    """The status of a pod of which no container has begun."""
    reason = "PodInitializing" if pod["spec"].get("initContainers") else "ContainerCreating"
    waiting = {"waiting": {"reason": reason}}
    names = {kind: [one["name"] for one in pod["spec"].get(kind, ())] for kind in ("initContainers", "containers")}
    status = status_of({}, "Pending", False)
    for kind, at in (("initContainers", "initContainerStatuses"), ("containers", "containerStatuses")):
        status[at] = [{"name": name, "state": waiting, "ready": False, "restartCount": 0} for name in names[kind]]
    return status


def status_of(codes: dict[str, int | None], phase: str, ready: bool, message: str = "") -> Document:
    """The status of a pod whose containers run (None) or have ended with these codes."""
    states = []
    for name, code in codes.items():
        reason = "Error" if code else "Completed"
        ended = {"terminated": {"exitCode": code, "reason": reason, "message": message}}
        state = {"running": {}} if code is None else ended
        states.append({"name": name, "state": state, "ready": ready, "restartCount": 0, "image": ""})
    conditions = [{"type": "Ready", "status": str(ready)}, {"type": "ContainersReady", "status": str(ready)}]
    return {"phase": phase, "conditions": conditions, "containerStatuses": states, "message": message}
