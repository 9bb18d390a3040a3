"""Input that nobody in his right mind would send: values, configurations, environments, damaged files.

Everything is drawn by hypothesis, so that what fails is made small and can be drawn again.
"""

import json
from typing import Any

from hypothesis import strategies as st

Draw = Any  # hypothesis' DrawFn, which is generic in nothing that mypy could check

TEXTS = (
    "", " ", ".", "..", "/", "../../etc/shadow", "/etc/shadow", "/dev/zero", "/proc/self/mem", "/run/netns/pod1", "lo",
    "ens2f0", "ens9", "eth0", "net1", "a" * 5000, "é" * 16, "a\nb", "\0", "x\0y", "\x1b[2J", "\u202e", "😀" * 40,
    "0.0.0.0/0", "::/0", "10.0.0.0/33", "10.0.0.0/-1", "10.0.0.9-10.0.0.1/24", "10.0.0.1-10.0.0.9/24", "fd00::/64",
    "192.168.111.0/24", "192.168.111.7/24", "192.168.111.7", "256.1.1.1/24", "fe80::1%eth0/64", "::ffff:10.0.0.1/96",
    "02:00:00:00:00:01", "ff:ff:ff:ff:ff:ff", "0000:00:00.0", "mlx5_core.sf.4", "1e999", "true", "/sys/devices/../net",
    "bridge", "passthru", "file", "etcd", "kubernetes", "host-local", "whereabouts", "1.1.0", "0.1.0", "9.9.9",
)  # fmt: skip
KEYS = (
    "cniVersion", "name", "type", "master", "mode", "mtu", "mac", "linkInContainer", "bcqueuelen", "dad", "ipam", "dns",
    "device", "hwaddr", "kernelpath", "pciBusID", "runtimeConfig", "prevResult", "args", "cni.dev/valid-attachments",
    "range", "range_start", "range_end", "exclude", "ipRanges", "gateway", "addresses", "routes", "network_name",
    "enable_overlapping_ranges", "node_slice_size", "datastore", "dataDir", "kubernetes", "kubeconfig", "etcd_host",
    "etcd_key_file", "log_file", "log_level", "configuration_path", "deviceID", "ips", "cni", "address", "dst", "gw",
    "interfaces", "ip4", "ip", "interface", "sandbox", "nameservers", "containerID", "ifname", "table", "scope", "rdma",
    "required", "waitSeconds", "ipv6LinkLocal", "CNIDeviceInfoFile", "verbsDevice", "vlan", "vlanQoS", "vlanProto",
    "min_tx_rate", "max_tx_rate", "spoofchk", "trust", "link_state", "logFile", "rail", "index", "group", "routing",
    "tableBase", "addressing", "ranges", "dataRoots", "dataDirs", "logRoots", "configRoots", "deviceInfoRoots",
    "masters", "devices", "uplinks", "storeHosts",
)  # fmt: skip
BASE: dict[str, Any] = {
    "cniVersion": "1.1.0",
    "name": "fuzz",
    "type": "macvlan",
    "master": "ens2f0",
    "device": "ens9",
    "deviceID": "0000:3b:00.2",
    "mode": "bridge",
    "mtu": 1500,
    "mac": "",
    "rdma": {"required": False, "waitSeconds": 1, "ipv6LinkLocal": True},
    "rail": {"index": 0, "group": "fuzz"},
    "ipam": {"type": "whereabouts", "datastore": "file", "range": "192.168.111.0/24", "exclude": ["192.168.111.128/25"],
             "ipRanges": [{"range": "fd00::/64", "range_start": "fd00::10"}], "gateway": "192.168.111.254",
             "addresses": [{"address": "10.9.0.1/24", "gateway": "10.9.0.254"}],
             "routes": [{"dst": "10.99.0.0/16", "gw": "192.168.111.254", "mtu": 1400}],
             "dns": {"nameservers": ["10.0.0.1"]}, "log_level": "debug", "store_timeout": 1},
    "runtimeConfig": {"ips": ["192.168.111.9"], "mac": "02:00:00:00:00:09"},
    "prevResult": {"cniVersion": "1.1.0",
                   "interfaces": [{"name": "net1", "mac": "02:00:00:00:00:09", "sandbox": "/run/netns/pod1"}],
                   "ips": [{"address": "192.168.111.9/24", "gateway": "192.168.111.254", "interface": 0}],
                   "routes": [{"dst": "10.99.0.0/16"}], "dns": {}},
    "cni.dev/valid-attachments": [{"containerID": "c1", "ifname": "net1"}],
}  # fmt: skip
POLICY = {
    "dataRoots": ["/var/lib/cni"], "logRoots": ["/var/log"], "configRoots": ["/etc/cni"],
    "deviceInfoRoots": ["/run/k8s.cni.cncf.io/devinfo"], "masters": ["ens*"], "devices": ["ens9", "0000:3b:00.*"],
}  # fmt: skip
ENVIRON = {
    "CNI_CONTAINERID": "c1", "CNI_NETNS": "/run/netns/pod1", "CNI_IFNAME": "net1",
    "CNI_ARGS": "IgnoreUnknown=1;K8S_POD_NAMESPACE=ns;K8S_POD_NAME=pod;K8S_POD_UID=u1;IP=192.168.111.9;MAC=02:00:00:00:00:09",
    "CNI_PATH": "/opt/cni/bin",
}  # fmt: skip
VERBS = ("ADD", "DEL", "CHECK", "GC", "STATUS")

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**66), 2**66)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from([10**4000, -1, 0, 2**31, 2**32, 2**63, 0.5])
    | st.sampled_from(TEXTS)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
)
keys = st.sampled_from(KEYS) | st.sampled_from(KEYS).map(str.upper) | st.sampled_from(TEXTS)
values = st.recursive(
    scalars | st.tuples(scalars, st.integers(2, 1200)).map(lambda pair: [pair[0]] * pair[1]),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(keys, inner, max_size=4)
    | st.tuples(inner, st.integers(2, 150)).map(lambda pair: _nested(*pair)),
    max_leaves=8,
)


def _nested(value: Any, depth: int) -> Any:
    for _ in range(depth):
        value = [value]
    return value


@st.composite
def changed(draw: Draw, document: dict[str, Any], most: int = 4) -> dict[str, Any]:
    """`document` with up to `most` of its values or keys, at any depth, replaced, removed or added."""
    changed: dict[str, Any] = json.loads(json.dumps(document))
    for _ in range(draw(st.integers(0, most))):
        place: Any = changed
        while True:
            inner = [
                v for v in (place.values() if isinstance(place, dict) else place) if isinstance(v, dict | list) and v
            ]
            if not inner or not draw(st.booleans()):
                break
            place = draw(st.sampled_from(inner))
        if isinstance(place, dict):
            key = draw(st.sampled_from(sorted(place)) | keys) if place else draw(keys)
            if draw(st.booleans()) and draw(st.booleans()):
                place.pop(key, None)
            else:
                place[key] = draw(values)
        elif place:
            place[draw(st.integers(0, len(place) - 1))] = draw(values)
    return changed


def text_of(document: Any) -> bytes:
    return json.dumps(document).encode()


Damage = list[tuple[str, int, int, bytes]]
damages: st.SearchStrategy[Damage] = st.lists(
    st.tuples(
        st.sampled_from(["flip", "put", "zero", "remove", "double", "cut", "insert"]),
        st.integers(0, 1 << 20),
        st.sampled_from([1, 1, 1, 2, 8, 100, 4096]),
        st.binary(min_size=1, max_size=1)
        | st.sampled_from([b"[" * 200, b"9" * 5000, b'"\\ud800"', b"\xff\xfe", b"\0", b"1e999", b",", b"//"]),
    ),
    min_size=1,
    max_size=3,
)
"""What `damage` does: (what, roughly where, to how many bytes, with which bytes)."""


def damage(data: bytes, steps: Damage) -> bytes:
    """`data` with bytes flipped, parts removed, doubled or zeroed, its end cut off."""
    out = bytearray(data)
    for what, where, length, part in steps:
        at = where % max(1, len(out))
        end = min(at + length, len(out))
        match what:
            case "flip" if out:
                out[at] ^= 1 << part[0] % 8
            case "put":
                out[at:end] = part
            case "zero":
                out[at:end] = bytes(end - at)
            case "remove":
                del out[at:end]
            case "double":
                out[at:at] = out[at:end]
            case "cut":
                del out[at:]
            case "insert":
                out[at:at] = part
    return bytes(out)


def inputs(document: dict[str, Any]) -> st.SearchStrategy[bytes]:
    """What may come where a JSON text like `document` is expected."""
    return (
        changed(document).map(text_of)
        | st.builds(damage, changed(document).map(text_of), damages)
        | values.map(text_of)
        | st.binary(max_size=60)
    )


words = st.sampled_from([t for t in TEXTS if "\0" not in t]) | st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20
)


@st.composite
def environments(draw: Draw, usual: dict[str, str]) -> dict[str, str]:
    """CNI variables, most of them as in `usual`, CNI_COMMAND among them."""
    environ = {"CNI_COMMAND": draw(st.sampled_from(VERBS) | st.sampled_from(VERBS) | words), **usual}
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 2]))):
        name = draw(st.sampled_from([*usual, "NODENAME", "CNI_NETNS_OVERRIDE"]))
        if draw(st.booleans()):
            environ[name] = draw(words)
        elif name == "CNI_ARGS":
            environ[name] = ";".join(f"{key}={draw(words)}" for key in ("IP", "GATEWAY", "MAC", "K8S_POD_NAME"))
        else:
            environ.pop(name, None)
    return environ
