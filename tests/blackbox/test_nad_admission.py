"""conf/examples/nad-admission.yaml on a real API server: which NetworkAttachmentDefinitions a namespace may have.

RAILCNI_TEST_KUBECONFIG names its kubeconfig, of an administrator. The policy has a name of our own, and is bound to the
namespace of the test.
"""

import json
import os
import subprocess
import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.node import ROOT
from tests.stores.kubernetes_core import NAD_DEFINITION
from tests.tools import needs

KUBECONFIG = os.environ.get("RAILCNI_TEST_KUBECONFIG", "")
pytestmark = [
    pytest.mark.skipif(not KUBECONFIG, reason="needs RAILCNI_TEST_KUBECONFIG, an administrator's of a real cluster"),
    needs("kubectl", "it applies the manifests"),
]
PREFIX = "nad.railcni.dev"
KIND = "network-attachment-definitions.k8s.cni.cncf.io"
IPAM = {"type": "whereabouts", "range": "10.1.2.0/24"}
GOOD = {"cniVersion": "1.0.0", "name": "n", "type": "macvlan", "master": "ens2f0", "ipam": IPAM}


def kubectl(*argv: str, given: list[dict[str, Any]] | None = None) -> str:
    """What kubectl says; its error begins with "Error"."""
    command = ["kubectl", f"--kubeconfig={KUBECONFIG}", *argv]
    text = yaml.safe_dump_all(given) if given else ""
    done = subprocess.run(command, input=text, capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else f"Error {done.stderr}"


def definition(namespace: str, config: str | None) -> dict[str, Any]:
    found: dict[str, Any] = {"apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition"}
    found["metadata"] = {"name": "rdma-net", "namespace": namespace}
    return found | ({"spec": {"config": config}} if config is not None else {})


def tried(namespace: str, config: str | None) -> str:
    return kubectl("create", "--dry-run=server", "-f", "-", given=[definition(namespace, config)])


@pytest.fixture(scope="module")
def namespace() -> Iterator[str]:
    name = f"t-{uuid.uuid4().hex[:6]}"
    notes = {"types": "macvlan,whereabouts,tuning", "masters": "ens2f0,ens2f1", "ranges": "10.1.0.0/16,fd00:1::/48"}
    annotations = {f"{PREFIX}/{key}": value for key, value in notes.items()}
    policies = list(yaml.safe_load_all((ROOT / "conf/examples/nad-admission.yaml").read_text()))
    for document in policies:
        document["metadata"]["name"] = name
    policies[1]["spec"]["policyName"] = name
    selector = {"matchLabels": {"kubernetes.io/metadata.name": name}}
    policies[1]["spec"]["matchResources"]["namespaceSelector"] = selector
    metadata = {"name": name, "annotations": annotations}
    made = [{"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}, *policies]
    if kubectl("get", "crd", KIND).startswith("Error"):
        crd = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition"}
        made.insert(0, crd | NAD_DEFINITION)
    for document in made:
        assert not (said := kubectl("apply", "-f", "-", given=[document])).startswith("Error"), said
    try:
        for _ in range(60):  # the server reads new policies at intervals
            if "ValidatingAdmissionPolicy" in tried(name, "{}\\"):
                break
            time.sleep(0.5)
        yield name
    finally:
        kubectl("delete", "--ignore-not-found", "--wait=false", "-f", "-", given=made)


def changed(**keys: Any) -> str:
    return json.dumps({**GOOD, **keys})


def ipam(**keys: Any) -> str:
    return changed(ipam={**IPAM, **keys})


ACCEPTED = (
    json.dumps(GOOD), json.dumps(GOOD, indent=4), changed(master="ens2f1"), ipam(range="10.1.2.10-10.1.2.20/24"),
    ipam(range="10.1.2.7/24", ipRanges=[{"range": "fd00:1:0:7::/64"}]), ipam(addresses=[{"address": "10.1.9.9/16"}]),
    json.dumps({"cniVersion": "1.0.0", "name": "n", "plugins": [GOOD, {"type": "tuning"}]}),
)  # fmt: skip


@pytest.mark.parametrize("config", ACCEPTED)
def test_a_definition_with_the_types_masters_and_ranges_of_its_namespace_is_made(namespace: str, config: str) -> None:
    assert "created" in tried(namespace, config)


REFUSED: dict[str, list[str | None]] = {  # by what words
    "printable ASCII": [
        None, "", json.dumps(GOOD).replace("type", "\\u0074ype"),
        json.dumps(GOOD, ensure_ascii=False).replace("master", "ma\u017fter"),
    ],
    "nad.railcni.dev/types": [
        changed(type="host-device"), changed(Type="host-device"), json.dumps({"plugins": [GOOD, {"type": "sbr"}]}),
    ],
    "nad.railcni.dev/masters": [changed(master="ens9"), changed(MASTER="ens9"), changed(master=""), changed(master=7)],
    "want a master": [json.dumps({k: v for k, v in GOOD.items() if k != "master"})],
    "nad.railcni.dev/ranges": [
        ipam(range="10.2.0.0/24"), ipam(range="10.0.0.0/8"), ipam(range="10.1.2.1-10.1.2.9/8"), ipam(range="nonsense"),
        ipam(ipRanges=[{"Range": "fd00:2::/64"}]), ipam(addresses=[{"address": "10.2.0.9/16"}]),
    ],
    "allows no key": [
        ipam(allow_outside_ranges=True), ipam(etcd_host="10.0.0.1"), ipam(configuration_path="/etc/cni/other.conf"),
        ipam(kubernetes={"kubeconfig": "/etc/kubernetes/admin.conf"}),
        changed(rail={"index": 0, "group": "g", "ranges": ["10.2.0.0/24"]}),
    ],
}  # fmt: skip


@pytest.mark.parametrize(("config", "words"), [(config, words) for words in REFUSED for config in REFUSED[words]])
def test_another_definition_is_refused_with_what_is_allowed(namespace: str, config: str | None, words: str) -> None:
    said = tried(namespace, config)
    assert said.startswith("Error") and "denied request" in said
    assert words in said


def test_a_namespace_without_annotations_has_no_definition(namespace: str) -> None:
    kubectl("annotate", "namespace", namespace, f"{PREFIX}/masters-")
    try:
        assert "nad.railcni.dev/masters" in tried(namespace, json.dumps(GOOD))
    finally:
        kubectl("annotate", "namespace", namespace, f"{PREFIX}/masters=ens2f0,ens2f1")
