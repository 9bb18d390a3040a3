"""What calls the plugins really: the variables, the CNI_ARGS and the order of the calls of each caller, recorded or from
source, as `source` says. Tests that stand for a caller take them from here, and those with the real one compare them.

Recorded means: a shell script in the place of the plugin wrote down its environment and stdin, and ran the plugin.
Variables that only say which run of the caller it was have a value of their own here.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

# systemd.exec(5) of 252: what a service gets, and one of Type=notify.
SERVICE = {
    "PATH": _SYSTEM_PATH, "LANG": "C.UTF-8", "INVOCATION_ID": "0d2e2d1b7a5c4d0b8f6a1c3e5f7a9b1d",
    "JOURNAL_STREAM": "8:21613", "SYSTEMD_EXEC_PID": "612",
}  # fmt: skip
NOTIFY = SERVICE | {"NOTIFY_SOCKET": "/run/systemd/notify"}


class Step(NamedTuple):
    """A call: with a CNI_NETNS or an empty one, with the prevResult of the ADD or without."""

    verb: str
    has_netns: bool = True
    has_previous: bool = True


ADD, CHECK, DEL = Step("ADD", has_previous=False), Step("CHECK"), Step("DEL")


@dataclass(frozen=True)
class Caller:
    """`environ` has the variables beside those of the specification, `unit` what the caller itself was started with.
    `is_in_pod`: it runs in a pod, and the plugin in a chroot of the host's root there."""

    source: str
    environ: Mapping[str, str]
    args: str
    order: tuple[Step, ...]
    ifname: str = "eth0"
    unit: Mapping[str, str] | None = None
    is_in_pod: bool = False

    def args_of(
        self, pod: str, container: str, uid: str = "77af6fdf-ef37-4093-85b0-54690b986d7f", namespace: str = "default"
    ) -> str:
        """CNI_ARGS of a call."""
        return self.args.format(pod=pod, container=container, namespace=namespace, uid=uid)


_OF_POD = "K8S_POD_NAMESPACE={namespace};K8S_POD_NAME={pod};K8S_POD_INFRA_CONTAINER_ID={container};K8S_POD_UID={uid}"
_OF_MULTUS = _OF_POD.rpartition(";")[0]  # Multus repeats what containerd gave it

# The plugin io.containerd.internal.v1.opt puts both into containerd's own environment.
_CONTAINERD = NOTIFY | {"PATH": f"/opt/containerd/bin:{_SYSTEM_PATH}", "LD_LIBRARY_PATH": "/opt/containerd/lib:"}

CONTAINERD = Caller(
    "recorded: containerd 1.6.20~ds1-1+deb12u3 with runc 1.1.5, /lib/systemd/system/containerd.service",
    _CONTAINERD,
    f"IgnoreUnknown=1;{_OF_POD}",
    (ADD, DEL, Step("DEL", has_netns=False, has_previous=False)),  # StopPodSandbox, RemovePodSandbox
    unit=NOTIFY,
)
KUBELET = Caller(
    "recorded: kubelet of Kubernetes 1.36.2, which calls no plugin, but the containerd above. A sandbox that has died is ended"
    " before the pod's next one is made, and removed later, often several times",
    CONTAINERD.environ,
    CONTAINERD.args,
    (ADD, DEL, *CONTAINERD.order),
    unit=NOTIFY,
)
THIN_MULTUS = Caller(
    "recorded: Multus 4.3.0, the executable `multus`, called by the containerd above", _CONTAINERD,
    f"IgnoreUnknown=true;{_OF_POD};K8S_POD_UID={{uid}};IgnoreUnknown=1;{_OF_MULTUS}", (ADD, DEL), "net1", unit=NOTIFY,
)  # fmt: skip
THICK_MULTUS = Caller(
    "recorded: Multus 4.3.0, `multus-daemon` in a pod like that of deployments/multus-daemonset-thick.yml, by the kubelet above;"
    " PATH is that of its image, debian:stable-slim",
    {
        "PATH": _SYSTEM_PATH, "HOSTNAME": "node-1", "HOME": "/root", "MULTUS_NODE_NAME": "node-1",
        "KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443",
        "KUBERNETES_SERVICE_PORT_HTTPS": "443", "KUBERNETES_PORT": "tcp://10.96.0.1:443",
        "KUBERNETES_PORT_443_TCP": "tcp://10.96.0.1:443", "KUBERNETES_PORT_443_TCP_PROTO": "tcp",
        "KUBERNETES_PORT_443_TCP_PORT": "443", "KUBERNETES_PORT_443_TCP_ADDR": "10.96.0.1",
    },
    f"IgnoreUnknown=true;{_OF_POD}",
    (ADD, DEL),
    "net1",
    is_in_pod=True,
)  # fmt: skip
CRI_O = Caller(
    "from source, as Debian has no package of it: cri-o 33dbcc1, contrib/systemd/crio.service; ocicni 0248397,"
    " buildCNIRuntimeConf in pkg/ocicni/ocicni.go; systemd.exec(5) and sd_watchdog_enabled(3) of 252",
    NOTIFY | {"GOTRACEBACK": "crash", "WATCHDOG_USEC": "60000000", "WATCHDOG_PID": "612"},
    f"IgnoreUnknown=1;{_OF_POD}",
    (ADD, CHECK, DEL),
)
PODMAN = Caller(
    "recorded: podman 4.3.1+ds1-8+deb12u1 with its CNI backend, /lib/systemd/system/podman.service",
    SERVICE | {"LOGGING": "--log-level=info", "TMPDIR": "/var/tmp", "XDG_RUNTIME_DIR": "", "HOME": "/root"},
    "IgnoreUnknown=1;K8S_POD_NAME={pod}",
    (ADD, DEL),
    unit=SERVICE | {"LOGGING": "--log-level=info"},
)
CNITOOL = Caller(
    "recorded: cnitool of containernetworking/cni 3f51e88 (after 1.3.0), from a shell",
    {"PATH": _SYSTEM_PATH, "HOME": "/root", "NETCONFPATH": "/etc/cni/net.d"},
    "",
    (ADD, CHECK, DEL),
)
CALLERS = {
    "containerd": CONTAINERD, "kubelet": KUBELET, "thin Multus": THIN_MULTUS, "thick Multus": THICK_MULTUS,
    "CRI-O": CRI_O, "podman": PODMAN, "cnitool": CNITOOL,
}  # fmt: skip

# It calls no CNI plugin, but `kubectl-railcni`.
KUBECTL = Caller(
    "recorded: kubectl 1.32.4, from a shell; as in kubernetes/kubernetes 8d31df5 it becomes the plugin, which"
    " gets kubectl's own environment and the arguments after its name; a flag before the name is refused",
    {
        "PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/home/admin", "SHELL": "/bin/bash", "LANG": "C.UTF-8",
        "TERM": "xterm",
    },
    "",
    (),
)  # fmt: skip
