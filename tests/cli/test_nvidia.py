"""railcni nad render: the NADs have the keys and values of the operators', and a resource with a fault makes none."""

import io
import json
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import yaml

from cni.cli.main import main
from cni.documents.diagnostic import Diagnostic
from cni.lint import nvidia
from tests.cli.test_conf import CONF
from tests.linted import lint_text

WHEREABOUTS = {"type": "whereabouts", "range": "192.168.2.225/28", "exclude": ["192.168.2.229/30", "192.168.2.236/32"]}
TUNING = '{"type":"tuning","sysctl":{"net.ipv4.conf.net1.arp_ignore":"1"}}'
MACVLAN = {"networkNamespace": "default", "master": "ens2f0", "mode": "bridge", "mtu": 1500}
POOL = {"type": "nv-ipam", "poolName": "my-pool"}
HOST_IPAM = """{
  "type": "whereabouts",
  "range": "192.168.3.225/28",
  "exclude": [
   "192.168.3.229/30",
   "192.168.3.236/32"
  ]
}
"""


def resource(kind: str, name: str = "net", **spec: Any) -> dict[str, Any]:
    return {"apiVersion": "mellanox.com/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec}


def rendered(tmp_path: Path, *documents: Any) -> tuple[list[dict[str, Any]], list[Diagnostic]]:
    path = tmp_path / "networks.yaml"
    path.write_text("---\n".join(d if isinstance(d, str) else yaml.safe_dump(d) for d in documents))
    return nvidia.render_files([str(path)])


def config(tmp_path: Path, document: Any) -> dict[str, Any]:
    (nad,), findings = rendered(tmp_path, document)
    assert not findings
    return dict(json.loads(nad["spec"]["config"]))


GOLDEN = {
    "macvlan": resource("MacvlanNetwork", "nvidia-macvlan", **MACVLAN, ipam=json.dumps(WHEREABOUTS, indent=2)),
    "macvlan-plugins": resource(
        "MacvlanNetwork", "nvidia-macvlan-plugins", **MACVLAN, ipam=json.dumps(WHEREABOUTS), metaPlugins=TUNING),
    "macvlan-no-ipam": resource("MacvlanNetwork", "nvidia-macvlan-no-ipam", **MACVLAN),
    "host-device": resource(
        "HostDeviceNetwork", "nvidia-host-device", networkNamespace="default", resourceName="hostdev", ipam=HOST_IPAM),
    "host-device-plugins": resource(
        "HostDeviceNetwork", "nvidia-host-device-plugins", networkNamespace="default",
        resourceName="nvidia.com/hostdev", ipam=HOST_IPAM, metaPlugins=TUNING),
    "host-device-no-ipam": resource(
        "HostDeviceNetwork", "nvidia-host-device-no-ipam", networkNamespace="default", resourceName="hostdev"),
}  # fmt: skip


@pytest.mark.parametrize("name", GOLDEN)
def test_a_nad_has_the_keys_and_values_of_the_operators(tmp_path: Path, name: str) -> None:
    (nad,), findings = rendered(tmp_path, GOLDEN[name])
    assert not findings
    wanted = yaml.safe_load((CONF / f"nad/nvidia/{name}.yaml").read_text())
    for one in (nad, wanted):
        one["spec"]["config"] = json.loads(one["spec"]["config"])
    assert nad == wanted


@pytest.mark.parametrize(
    ("document", "namespace", "wanted"),
    [  # what the operator's own tests expect, pkg/state/state_*_network_test.go
        (resource("MacvlanNetwork", "mac-vlan", networkNamespace="macvlan", master="eth0", mode="bridge", mtu=150),
         "macvlan", {"type": "macvlan", "master": "eth0", "mode": "bridge", "mtu": 150, "ipam": {}}),
        (resource("MacvlanNetwork", "mac-vlan", master="eth0", ipam=json.dumps(POOL)), "default",
         {"type": "macvlan", "master": "eth0", "ipam": POOL}),
        (resource("MacvlanNetwork", "bare"), "default", {"type": "macvlan", "ipam": {}}),
        (resource("MacvlanNetwork", "zero", mtu=0), "default", {"type": "macvlan", "ipam": {}}),
        (resource("HostDeviceNetwork", "host-device", networkNamespace="hostdevice", resourceName="test", ipam=json.dumps(POOL)),
         "hostdevice", {"type": "host-device", "ipam": POOL}),
        (resource("IPoIBNetwork", "ipo-ib", networkNamespace="ipoib", master="eth0", ipam=json.dumps(POOL)), "ipoib",
         {"type": "ipoib", "master": "eth0", "ipam": POOL}),
        (resource("IPoIBNetwork", "ipo-ib"), "default", {"type": "ipoib", "master": "", "ipam": {}}),
    ],
)  # fmt: skip
def test_every_field_and_default_is_the_operators(tmp_path: Path, document: Any, namespace: str, wanted: Any) -> None:
    name = document["metadata"]["name"]
    assert config(tmp_path, document) == {"cniVersion": "0.3.1", "name": name, **wanted}
    (nad,), _ = rendered(tmp_path, document)
    assert nad["metadata"]["namespace"] == namespace


def test_meta_plugins_make_a_chain_in_their_order(tmp_path: Path) -> None:
    document = resource("MacvlanNetwork", master="eth0", metaPlugins=TUNING + ", " + '{"type": "sbr"}')
    plugins = [{"type": "macvlan", "master": "eth0", "ipam": {}}, json.loads(TUNING), {"type": "sbr"}]
    assert config(tmp_path, document) == {"cniVersion": "0.3.1", "name": "net", "plugins": plugins}


def test_what_is_rendered_has_no_error_for_the_lint(tmp_path: Path) -> None:
    nads, _ = rendered(tmp_path, *GOLDEN.values())
    findings = lint_text(yaml.safe_dump_all(nads), "a.yaml")
    assert {(f.severity, f.key.rpartition(".")[2]) for f in findings} == {("warning", "mtu")}  # 1500, as they say


@pytest.mark.parametrize(
    ("document", "key", "message"),
    [(resource("MacvlanNetwork", mode="Bridge"), "spec.mode", "want one of bridge, private, vepa, passthru"),
     (resource("MacvlanNetwork", mode=""), "spec.mode", "want one of bridge, private, vepa, passthru"),
     (resource("MacvlanNetwork", mtu="1500"), "spec.mtu", "want an integer"),
     (resource("MacvlanNetwork", mtu=-1), "spec.mtu", "want 0 or more"),
     (resource("MacvlanNetwork", mtuu=1), "spec.mtuu", "has no key"),
     (resource("MacvlanNetwork", resourceName="x"), "spec.resourceName", "has no key"),
     (resource("MacvlanNetwork", ipam='{"type": "a" "b": 1}'), "spec.ipam", "expecting ',' delimiter"),
     (resource("MacvlanNetwork", ipam=" "), "spec.ipam", "is empty"),
     (resource("MacvlanNetwork", ipam="[]"), "spec.ipam", "want an object"),
     (resource("MacvlanNetwork", ipam={"type": "x"}), "spec.ipam", "want a string"),
     (resource("MacvlanNetwork", metaPlugins=f"[{TUNING}]"), "spec.metaPlugins", "puts the brackets around it"),
     (resource("MacvlanNetwork", metaPlugins=TUNING + ","), "spec.metaPlugins", "not JSON"),
     (resource("HostDeviceNetwork", networkNamespace="n"), "spec.resourceName", "is missing"),
     (resource("HostDeviceNetwork", networkNamespace="n", resourceName="a!!"), "spec.resourceName", "letter or digit"),
     (resource("HostDeviceNetwork", resourceName="a"), "spec.networkNamespace", "has no default for it here"),
     (resource("IPoIBNetwork", mtu=4), "spec.mtu", "has no key"),
     (resource("MacvlanNetwork", ""), "metadata.name", "want a name"),
     (resource("MacvlanNetworks"), "kind", "want MacvlanNetwork"),
     ({**resource("MacvlanNetwork"), "apiVersion": "mellanox.com/v1"}, "apiVersion", "want mellanox.com/v1alpha1")],
)  # fmt: skip
def test_a_bad_resource_is_told_and_makes_no_nad(tmp_path: Path, document: Any, key: str, message: str) -> None:
    nads, findings = rendered(tmp_path, document)
    assert nads == []
    assert [(f.key, message in f.message) for f in findings] == [(key, True)]
    assert findings[0].line and findings[0].fix


def test_a_fault_inside_a_string_is_placed_in_the_file(tmp_path: Path) -> None:
    head = "apiVersion: mellanox.com/v1alpha1\nkind: MacvlanNetwork\nmetadata:\n  name: net\nspec:\n"
    block = '  ipam: |\n    {\n      "type": "whereabouts"\n      "range": "10.0.0.0/24"\n    }\n'
    _, (finding,) = rendered(tmp_path, head + block)
    assert (finding.line, finding.column, finding.fix) == (8, 27, "write , after this")
    _, (finding,) = rendered(tmp_path, head + "  metaPlugins: '{\"type\": tuning}'")
    assert finding.text[finding.column - 1 :].startswith("tuning}")


def run(text: str, *argv: str) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    stdin = io.TextIOWrapper(io.BytesIO(text.encode()))
    command = ["railcni", "nad", "render", "-", *argv]
    with patch("sys.argv", command), patch("sys.stdin", stdin), redirect_stdout(out), redirect_stderr(err):
        code = main()
    return code, out.getvalue(), err.getvalue()


def test_the_command_writes_all_or_nothing() -> None:
    good, bad = resource("MacvlanNetwork", "good"), resource("MacvlanNetwork", "bad", mtu=-1)
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}}
    code, out, err = run(yaml.safe_dump_all([good, pod, resource("IPoIBNetwork", "second")]))
    assert (code, [d["metadata"]["name"] for d in yaml.safe_load_all(out)], err) == (0, ["good", "second"], "")
    listed = yaml.safe_dump({"kind": "List", "apiVersion": "v1", "items": [good, pod]})
    code, out, _ = run(listed, "-o", "json")
    assert (code, json.loads(out)["kind"]) == (0, "NetworkAttachmentDefinition")
    for text, said in (
        (yaml.safe_dump_all([good, bad]), "spec.mtu"),
        (yaml.safe_dump(pod), "there is none of MacvlanNetwork"),
    ):
        code, out, err = run(text)
        assert (code, out, said in err) == (1, "", True), err


def sriov_network(**spec: Any) -> dict[str, Any]:
    metadata = {"name": "vf", "namespace": "operators"}
    return {"apiVersion": "sriovnetwork.openshift.io/v1", "kind": "SriovNetwork", "metadata": metadata, "spec": spec}


def test_a_sriov_network_becomes_the_nad_of_its_operator(tmp_path: Path) -> None:
    document = sriov_network(
        resourceName="mlx5_vf", networkNamespace="default", vlan=100, spoofChk="off", trust="on", maxTxRate=1000,
        linkState="auto", capabilities='{"ips": true}', ipam=json.dumps(POOL), metaPlugins='{"type": "rdma"}',
    )  # fmt: skip
    (nad,), findings = rendered(tmp_path, document)
    assert not findings
    assert nad["metadata"]["annotations"] == {"k8s.v1.cni.cncf.io/resourceName": "openshift.io/mlx5_vf"}
    plugin = {
        "type": "sriov", "vlan": 100, "spoofchk": "off", "trust": "on", "max_tx_rate": 1000, "capabilities": {"ips": True},
        "link_state": "auto", "ipam": POOL,
    }  # fmt: skip
    expected = {"cniVersion": "1.0.0", "name": "vf", "plugins": [plugin, {"type": "rdma"}]}
    assert json.loads(nad["spec"]["config"]) == expected
    (nad,), _ = rendered(tmp_path, sriov_network(resourceName="vf"))
    assert nad["metadata"]["namespace"] == "operators", "its own, where it names none"
    assert json.loads(nad["spec"]["config"]) == {
        "cniVersion": "1.0.0",
        "name": "vf",
        "type": "sriov",
        "vlan": 0,
        "ipam": {},
    }
