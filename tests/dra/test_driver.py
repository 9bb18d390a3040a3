"""The driver's process at a kubelet and an API server made for tests: registration, claims, restarts, kills."""

import json
import signal
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from cni.shared.records import Records
from cni.shared.spec.request import Attachment
from tests.device_plugin.kubelet import Other
from tests.dra.kubelet import Refused, edits, result
from tests.dra.scene import DraScene
from tests.dra.test_slices import SHARED, VF, VFS, share
from tests.each import quick
from tests.node import ROOT

SECOND = "rdma-a-0000-31-00-0"
CONFIG = share("a", "ens0f0", "ens1f0") | VFS
DRA = ROOT / "conf/kubernetes/dra"
Claim = tuple[str, str, str]


@pytest.fixture(scope="module")
def running() -> Iterator[DraScene]:
    """Two NICs, the second with two VFs."""
    with DraScene() as scene:
        scene.machine.nic(0)
        scene.machine.nic(1, vfs=2)
        scene.configure(CONFIG)
        scene.dra.start()
        scene.start_plugin()
        yield scene


@pytest.fixture
def scene(running: DraScene) -> Iterator[DraScene]:
    """The same as ever before each test."""
    running.configure(CONFIG)
    running.api.core.shares = True
    assert is_published(running, SHARED, VF), running.lines
    yield running
    for place in [place for place in running.api.core.objects if place[0] == "resourceclaims"]:
        running.dra.unprepare((running.api.core.objects[place]["metadata"]["uid"], *place[1:]))
        del running.api.core.objects[place]
    assert running.left() == []


def is_published(scene: DraScene, *names: str) -> bool:
    scene.is_up()
    return scene.until(lambda: {*names} <= scene.published().keys()) and scene.dra.until(lambda: scene.dra.registered)


def claim(scene: DraScene, *results: dict[str, Any], name: str = "", **allocation: Any) -> Claim:
    name = name or f"c-{uuid.uuid4()}"
    return scene.api.core.add_claim("team", name, *results, **allocation), "team", name


def given(scene: DraScene, devices: list[Any]) -> dict[str, list[Any]]:
    return edits(scene.cdi, [one for device in devices for one in device.cdi_device_ids])


def test_two_claims_share_a_nic_and_each_container_gets_its_device_nodes(scene: DraScene) -> None:
    claims = [claim(scene, result(SHARED, share=f"share-{number}")) for number in range(2)]
    for number, devices in enumerate(scene.dra.prepare(*claims)):
        (device,) = devices
        assert (device.pool_name, device.device_name, list(device.request_names)) == ("node-1", SHARED, ["nic"])
        assert device.share_id == f"share-{number}"
        assert given(scene, devices) == {"nodes": ["/dev/infiniband/uverbs0", "/dev/infiniband/rdma_cm"], "env": []}


def test_a_function_brings_its_variables_and_what_multus_reads(scene: DraScene) -> None:
    (devices,) = scene.dra.prepare(claim(scene, result(VF, request="vf/first"), result(VF[:-1] + "2", request="other")))
    assert [list(device.request_names) for device in devices] == [["vf"], ["other"]]
    assert not devices[0].HasField("share_id")
    env = dict(text.split("=", 1) for text in given(scene, devices[:1])["env"])
    assert env["PCIDEVICE_INTEL_COM_VF"] == "0000:31:00.1,0000:31:00.2"
    assert json.loads(env["PCIDEVICE_INTEL_COM_VF_INFO"])["0000:31:00.1"]["rdma"]["rdma_dev"] == "mlx5_1v0"
    info = scene.root / "var/run/k8s.cni.cncf.io/devinfo/dp/intel.com-vf-0000:31:00.1-device.json"
    assert json.loads(info.read_text())["pci"]["rdma-device"] == "mlx5_1v0"


def test_prepare_and_unprepare_may_be_repeated(scene: DraScene) -> None:
    one = claim(scene, result(SHARED), result(VF))
    first = scene.dra.prepare(one)
    assert scene.dra.prepare(one) == first
    scene.dra.unprepare(one)
    assert scene.left() == []
    scene.dra.unprepare(one)
    scene.dra.unprepare((str(uuid.uuid4()), "team", "never-seen"))
    assert scene.dra.prepare(one) == first


def test_a_claim_that_is_allocated_anew_gets_its_new_device(scene: DraScene) -> None:
    one = claim(scene, result(VF), name="again")
    scene.dra.prepare(one)
    allocation = scene.api.core.objects["resourceclaims", "team", "again"]["status"]["allocation"]
    allocation["devices"]["results"] = [result(VF[:-1] + "2")]
    (devices,) = scene.dra.prepare(one)
    assert "PCIDEVICE_INTEL_COM_VF=0000:31:00.2" in given(scene, devices)["env"]
    assert [name for name in scene.left() if name.startswith("intel")] == ["intel.com-vf-0000:31:00.2-device.json"]


def test_a_function_goes_to_a_second_claim_only_when_kubelet_has_unprepared_the_first(scene: DraScene) -> None:
    first, second = claim(scene, result(VF), name="first"), claim(scene, result(VF), name="second")
    scene.dra.prepare(first)
    with pytest.raises(Refused, match=f"{VF} is still prepared for ResourceClaim team/first"):
        scene.dra.prepare(second)
    before, watches = scene.left(), claim(scene, result(VF) | {"adminAccess": True}, name="watches")
    scene.dra.prepare(watches)
    scene.dra.unprepare(watches)
    assert scene.left() == before
    scene.dra.prepare(watches)
    del scene.api.core.objects["resourceclaims", "team", "first"]  # its finalizer was removed
    with pytest.raises(Refused, match=f"{VF} is still prepared for ResourceClaim team/first"):
        scene.dra.prepare(second)
    scene.dra.unprepare(first)
    scene.dra.prepare(second)
    left = scene.left()
    scene.dra.unprepare(first)
    assert scene.left() == left


POD = "b2a3c1d0-0000-4000-8000-000000000001"
SYSTEMD = "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{_}.slice"
CGROUPFS = "memory/kubepods/besteffort/pod{-}"


@pytest.mark.parametrize(
    ("group", "known"),
    [(CGROUPFS, "by its link"),
     *((SYSTEMD, known) for known in ("when it was prepared", "when the driver started", "by its link"))],
)  # fmt: skip
def test_a_function_of_a_claim_that_is_gone_and_forgotten_is_its_pods_as_long_as_that_runs(
    scene: DraScene, group: str, known: str
) -> None:
    first, second = claim(scene, result(VF), name="first"), claim(scene, result(VF), name="second")
    status = scene.api.core.objects["resourceclaims", "team", "first"]["status"]
    users = {"reservedFor": [{"resource": "pods", "name": "pod-1", "uid": POD}]}
    status |= users if known == "when it was prepared" else {}
    scene.dra.prepare(first)
    runs = scene.root / "sys/fs/cgroup" / group.format_map({"_": POD.replace("-", "_"), "-": POD})
    runs.mkdir(parents=True)
    records, attachment = Records(f"{scene.root}/var/lib/cni/railcni"), Attachment("vf-net", "c1", "net1")
    if known == "when the driver started":
        status |= users
        scene.end_plugin()
        scene.start_plugin()
        assert scene.until(lambda: scene.record(first[0])["pods"] == [POD]), scene.lines
    elif known == "by its link":
        link = {"created": 1, "config": "{}", "link": {"pci": "0000:31:00.1"}}
        records.write(attachment, "link", {"netns": "", "pod": ["team", "pod-1", POD], **link})
    (scene.dra.folder / "dra_manager_state").unlink()
    del scene.api.core.objects["resourceclaims", "team", "first"]
    before = len(scene.dra.registered)
    scene.dra.restart()
    assert scene.dra.until(lambda: len(scene.dra.registered) > before)
    with pytest.raises(Refused, match=f"team/first: the claim is gone, but pod {POD} still runs on this node"):
        scene.dra.prepare(second)
    runs.rmdir()
    scene.dra.prepare(second)
    records.remove(attachment, "link")
    assert not any(first[0] in name for name in scene.left())


@pytest.mark.parametrize(("results", "more", "said"), [
    ([], {}, "is gone, is another one by now, or has no device"),
    ([result("rdma-a-9")], {}, f"there is no device rdma-a-9 any more; there are: {SHARED}, {SECOND}"),
    ([result(SHARED, pool="node-2")], {}, "has no device of railcni.io on this node"),
    ([result(SHARED) | {"driver": "gpu.example.com"}], {}, "has no device of railcni.io on this node"),
    ([result(SHARED)], {"config": [{"opaque": {"driver": "railcni.io", "parameters": {}}}]},
     "railcni.io takes no parameters: remove them"),
    ([result(SHARED), result("gone")], {}, "there is no device gone"),
])  # fmt: skip
def test_a_claim_that_cannot_be_prepared_is_refused_with_the_reason_and_leaves_nothing(
    scene: DraScene, results: list[dict[str, Any]], more: dict[str, Any], said: str
) -> None:
    with pytest.raises(Refused) as refused:
        scene.dra.prepare(claim(scene, *results, **more))
    assert said in str(refused.value)
    assert scene.left() == []


@pytest.mark.parametrize(("asked", "said"), [
    (lambda one: (str(uuid.uuid4()), *one[1:]), "is another one by now"),
    (lambda one: (one[0], "team", "no-such-claim"), "team/no-such-claim is gone"),
    (lambda one: ("../../etc/x", *one[1:]), "is gone, is another one by now"),
])  # fmt: skip
def test_a_claim_of_another_uid_or_name_is_refused(scene: DraScene, asked: Any, said: str) -> None:
    one = claim(scene, result(SHARED))
    with pytest.raises(Refused, match=said):
        scene.dra.prepare(asked(one))
    assert scene.left() == []


def test_a_nic_that_is_down_is_told_to_kubelet_and_the_scheduler_and_given_to_no_claim_until_it_is_up(
    scene: DraScene,
) -> None:
    held = claim(scene, result(SHARED))
    scene.dra.prepare(held)
    scene.machine.port("mlx5_0", "1: DOWN")
    assert scene.until(lambda: not scene.published()[SHARED]["healthy"])
    assert scene.dra.until(lambda: scene.dra.health.get(SHARED, (True, ""))[0] is False)
    assert "mlx5_0 port 1 is DOWN" in scene.dra.health[SHARED][1]
    with pytest.raises(Refused, match="cannot be used: mlx5_0 port 1 is DOWN"):
        scene.dra.prepare(claim(scene, result(SHARED)))
    assert len(scene.dra.prepare(held)) == 1
    scene.machine.port("mlx5_0", "4: ACTIVE")
    assert scene.until(lambda: scene.published()[SHARED]["healthy"])
    assert scene.dra.until(lambda: scene.dra.health[SHARED][0])


def test_a_device_that_is_not_offered_any_more_keeps_its_claim_and_is_told(scene: DraScene) -> None:
    held = claim(scene, result(VF))
    first = scene.dra.prepare(held)
    scene.configure(share("a", "ens0f0", "ens1f0"))
    assert scene.until(lambda: VF not in scene.published())
    assert scene.dra.until(lambda: scene.dra.health.get(VF) == (False, "0000:31:00.1 is gone, or not offered any more"))
    assert scene.dra.prepare(held) == first


def test_slices_are_published_after_kubelet_has_registered_the_driver(scene: DraScene) -> None:
    scene.end_plugin()
    scene.wipe()
    scene.lines.clear()
    scene.start_plugin()
    assert scene.until(lambda: SHARED in scene.published())
    assert scene.until(lambda: any("msg=published" in line for line in list(scene.lines))), "its log comes by a pipe"
    events = [event for line in scene.lines for event in ("has registered", "published") if event in line]
    assert events[:2] == ["has registered", "published"], scene.lines


def test_slices_that_a_restarted_kubelet_deletes_late_are_there_again(scene: DraScene) -> None:
    """It tries again, for minutes, when the API server did not answer at its start."""
    before = len(scene.dra.registered)
    scene.dra.restart()
    assert scene.dra.until(lambda: len(scene.dra.registered) > before)
    for _ in range(2):
        assert scene.until(lambda: SHARED in scene.published())
        scene.wipe()
    assert scene.until(lambda: SHARED in scene.published())


@pytest.mark.parametrize("number", quick([signal.SIGTERM, signal.SIGKILL], signal.SIGKILL))
def test_a_restarted_driver_answers_as_before_and_writes_no_slice(scene: DraScene, number: int) -> None:
    held = claim(scene, result(SHARED), result(VF))
    first = scene.dra.prepare(held)
    before, written = len(scene.dra.registered), scene.written()
    scene.end_plugin(number)
    registry = [path.name for path in scene.dra.registry.iterdir()]
    assert registry == (["railcni.io-reg.sock"] if number == signal.SIGKILL else [])
    scene.start_plugin()
    assert scene.dra.until(lambda: len(scene.dra.registered) > before), scene.lines
    assert scene.dra.prepare(held) == first
    assert scene.written() == written


def test_after_a_boot_the_specifications_are_there_again_and_those_of_no_claim_go(scene: DraScene) -> None:
    held, other = claim(scene, result(SHARED)), claim(scene, result(VF))
    (devices,) = scene.dra.prepare(held)
    scene.dra.prepare(other)
    wanted, left, before = given(scene, devices), scene.left(), len(scene.dra.registered)
    scene.end_plugin(signal.SIGKILL)
    for path in scene.cdi.iterdir():  # /var/run is a tmpfs
        path.unlink()
    (scene.cdi / "dra.railcni.io-of-no-claim.json").write_text("{}")
    (scene.cdi / "nvidia.json").write_text("{}")
    scene.start_plugin()
    assert scene.until(lambda: {*scene.left()} == {*left, "nvidia.json"}), scene.left()
    assert scene.dra.until(lambda: len(scene.dra.registered) > before)
    (scene.cdi / "nvidia.json").unlink()
    assert given(scene, devices) == wanted


def test_records_of_claims_that_are_gone_are_removed_when_kubelet_has_forgotten_them(scene: DraScene) -> None:
    gone, held = claim(scene, result(VF)), claim(scene, result(SHARED))
    scene.dra.prepare(gone, held)
    del scene.api.core.objects["resourceclaims", gone[1], gone[2]]
    (scene.dra.folder / "dra_manager_state").unlink()
    scene.dra.restart()
    assert scene.until(lambda: not any(gone[0] in name or "intel" in name for name in scene.left())), scene.left()
    assert scene.record(held[0])["name"] == held[2]


def test_a_socket_that_is_removed_is_made_again(scene: DraScene) -> None:
    before = len(scene.dra.registered)
    (scene.dra.registry / "railcni.io-reg.sock").unlink()
    assert scene.dra.until(lambda: len(scene.dra.registered) > before)


def test_a_resource_that_a_device_plugin_serves_is_not_published_as_long_as_it_does(scene: DraScene) -> None:
    scene.kubelet.start()
    try:
        with Other(scene.kubelet, "rdma/a", ["x", "y"]):
            assert scene.kubelet.until(lambda: scene.kubelet.allocatable("rdma/a") == 2)
            assert scene.until(lambda: SHARED not in scene.published()), scene.lines
            assert VF in scene.published()
            status, text = scene.page("readyz")
            assert status == 503
            assert "a device plugin serves rdma/a, with 2 devices, so no claim gets it" in text
            scene.kubelet.stop()  # which takes no device from a pod
            scene.configure(share("a", "ens0f0", "ens1f0"))
            assert scene.until(lambda: VF not in scene.published())
            assert SHARED not in scene.published()
            scene.kubelet.start()
        assert scene.until(lambda: SHARED in scene.published())
    finally:
        scene.kubelet.stop()


def test_a_function_that_a_pod_has_from_a_device_plugin_is_given_to_no_claim_until_the_pod_ends(
    scene: DraScene,
) -> None:
    """As when the resource has moved from the device plugin's configuration to the driver's."""
    scene.kubelet.start()
    try:
        with Other(scene.kubelet, "intel.com/vf", ["0000:31:00.1", "0000:31:00.2"]):
            assert scene.until(lambda: VF not in scene.published()), scene.lines
            scene.kubelet.pod_devices["team/pod-1/c"] = {"intel.com/vf": ["0000:31:00.1"]}
        assert scene.until(lambda: VF in scene.published()), scene.lines
        states = [scene.published()[name]["healthy"] for name in (VF, VF[:-1] + "2")]
        assert states == [False, True], scene.lines
        assert scene.said("pods have 0000:31:00.1 from a device plugin: claims get them when these pods have ended")
        with pytest.raises(Refused, match="a pod has 0000:31:00.1 from a device plugin: drain the node"):
            scene.dra.prepare(claim(scene, result(VF)))
        scene.kubelet.stop()  # which ends no pod
        scene.configure(CONFIG | {"periodicUpdateInterval": 59})
        assert scene.said("the configuration was read")
        assert scene.published()[VF]["healthy"] is False
        scene.kubelet.start()
        scene.kubelet.pod_devices.clear()
        assert scene.until(lambda: scene.published()[VF]["healthy"]), scene.lines
    finally:
        scene.kubelet.pod_devices.clear()
        scene.kubelet.stop()


def test_a_resource_with_a_name_that_no_slice_takes_is_told_and_not_published(scene: DraScene) -> None:
    long = "a" * 60  # 65 characters with the prefix
    scene.configure(share(long, "ens0f0", "ens1f0"))
    assert scene.until(lambda: not scene.published()), scene.lines
    assert scene.page("readyz") == (
        503,
        f"rdma/{long} has 65 characters, and a ResourceSlice takes 64: shorten the name\n",
    )


def test_a_refused_registration_is_told(scene: DraScene) -> None:
    scene.dra.refuses = "the name is taken"
    scene.dra.restart()
    assert scene.said("kubelet does not register the driver: the name is taken")
    assert "does not register the driver" in scene.page("readyz")[1]
    scene.dra.refuses = ""
    scene.dra.restart()
    assert scene.until(lambda: scene.page("readyz")[0] == 200)


def test_an_api_server_without_shares_is_told_by_log_and_readyz_and_a_claim_is_prepared_all_the_same(
    scene: DraScene,
) -> None:
    """As Kubernetes 1.34, whose scheduler gives a NIC to one claim at a time."""
    told = "the API server keeps no allowMultipleAllocations, so a shared NIC is given to one claim at a time"
    scene.api.core.shares = False
    scene.dra.restart()  # which deletes the slices
    assert scene.said(told), scene.lines
    status, text = scene.page("readyz")
    assert (status, told in text) == (200, True)
    (devices,) = scene.dra.prepare(claim(scene, result(SHARED)))
    assert given(scene, devices)["nodes"] == ["/dev/infiniband/uverbs0", "/dev/infiniband/rdma_cm"]
    scene.api.core.shares = True
    scene.dra.restart()
    assert scene.until(lambda: told not in scene.page("readyz")[1])


@pytest.mark.parametrize("place", quick(["plugins_registry", "plugins"], "plugins"))
def test_a_folder_of_kubelet_that_is_read_only_is_told_with_the_remedy(place: str) -> None:
    with DraScene() as scene:
        scene.machine.nic(0)
        scene.configure(share("a", "ens0f0"))
        scene.dra.start()
        (scene.dra.folder / place).mkdir(exist_ok=True)
        scene.make_read_only(scene.dra.folder / place)
        scene.start_plugin()
        assert scene.said("Read-only file system: mount it writable"), scene.lines
        assert "mount it writable" in scene.page("readyz")[1]
        assert scene.end_plugin() == 0
        assert not [line for line in scene.lines if "Errno" in line or "Traceback" in line]


def test_metrics_tell_devices_and_claims(scene: DraScene) -> None:
    scene.dra.prepare(claim(scene, result(SHARED)))
    text = scene.page("metrics")[1]
    for line in (
        'railcni_dra_devices{resource="rdma/a",health="healthy"} 2',
        "railcni_dra_claims 1",
        "railcni_dra_published 1",
        "railcni_dra_registered 1",
        'railcni_dra_conflict{resource="rdma/a"} 0',
    ):
        assert line in text


def test_a_claim_shows_the_address_of_its_pod_when_the_pod_is_attached(scene: DraScene) -> None:
    one = claim(scene, result(VF), name="told")
    status = scene.api.core.objects["resourceclaims", "team", "told"]["status"]
    status["reservedFor"] = [{"resource": "pods", "name": "pod-1", "uid": "u1"}]
    scene.dra.prepare(one)
    of_pod = {"netns": "", "pod": ["team", "pod-1", "u1"]}
    records, attachment = Records(f"{scene.root}/var/lib/cni/railcni"), Attachment("vf-net", "c1", "net1")
    link = {"created": 1, "config": "{}", "link": {"pci": "0000:31:00.1", "device": {"mac": "02:00:00:00:00:01"}}}
    records.write(attachment, "ipam", {**of_pod, "addresses": ["192.168.111.1/24"]})
    records.write(attachment, "link", {**of_pod, **link})
    told = scene.api.core.objects
    assert scene.until(lambda: told["resourceclaims", "team", "told"]["status"].get("devices")), scene.lines
    (device,) = told["resourceclaims", "team", "told"]["status"]["devices"]
    assert (device["device"], device["pool"]) == (VF, "node-1")
    assert device["networkData"]["ips"] == ["192.168.111.1/24"]
    scene.api.forbidden.add(("patch", "resourceclaims/status"))
    records.remove(attachment, "link")
    assert scene.said("claims do not show what their pods have")
    assert "claims do not show what their pods have" in scene.page("readyz")[1]
    scene.api.forbidden.clear()
    assert scene.until(lambda: told["resourceclaims", "team", "told"]["status"]["devices"] == [])


def test_the_driver_asks_the_api_server_for_what_its_role_allows_and_the_role_allows_nothing_else(
    scene: DraScene,
) -> None:
    role = next(d for d in yaml.safe_load_all((DRA / "rbac.yaml").read_text()) if d["kind"] == "ClusterRole")
    allowed = {
        (v, g, r) for rule in role["rules"] for v in rule["verbs"] for g in rule["apiGroups"] for r in rule["resources"]
    }
    scene.configure(VFS)
    assert scene.until(lambda: SHARED not in scene.published())
    scene.configure({"configList": [{"resourceName": "a", "rdmaHcaMax": 0, "devices": ["ens0f0"]}]})
    assert scene.until(lambda: not scene.slices())
    assert {(verb, group, resource) for verb, group, resource, _ in scene.api.asked} == allowed
