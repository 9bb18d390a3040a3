"""The device plugin's process at a kubelet made for tests: registration, health, allocation, reload, conflicts."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from cni.cli.main import main
from tests.device_plugin.kubelet import Other
from tests.device_plugin.scene import SHARED, Scene
from tests.node import ROOT


@pytest.fixture(scope="module")
def running() -> Iterator[Scene]:
    """Two NICs with 50 devices each at kubelet."""
    with Scene() as scene:
        scene.machine.nic(0, vfs=2)
        scene.machine.nic(1)
        scene.configure(PLAIN)
        scene.kubelet.start()
        scene.start_plugin()
        yield scene


PLAIN = {"configList": [{"resourceName": "hca_shared_devices_a", "rdmaHcaMax": 100, "devices": ["ens0f0", "ens1f0"]}]}


@pytest.fixture
def scene(running: Scene) -> Scene:
    """The same as ever before each test."""
    running.lines.clear()
    running.configure(PLAIN)
    assert running.kubelet.until(lambda: running.kubelet.allocatable(SHARED) == 100), running.lines
    return running


def is_whole(scene: Scene, number: int = 100, name: str = SHARED) -> bool:
    return scene.kubelet.until(lambda: scene.kubelet.allocatable(name) == number)


def test_a_container_gets_the_nodes_of_one_nic(scene: Scene) -> None:
    first = scene.kubelet.allocate("pod/one", SHARED)
    second = scene.kubelet.allocate("pod/two", SHARED)
    paths = [sorted(device.host_path.rpartition("/")[2] for device in given.devices) for given in (first, second)]
    assert sorted(paths) == [["rdma_cm", "uverbs0"], ["rdma_cm", "uverbs1"]]
    both = scene.kubelet.allocate("pod/both", SHARED, 2)
    assert {d.host_path.rpartition("/")[2] for d in both.devices} == {"rdma_cm", "uverbs0", "uverbs1"}


def test_specifications_that_cannot_be_written_are_told_since_no_container_would_start() -> None:
    with Scene() as scene:
        scene.machine.nic(0)
        scene.configure({"configList": [scene.share("ens0f0")]})
        (scene.machine.root / "var/run").mkdir(parents=True, exist_ok=True)
        (scene.machine.root / "var/run/cdi").write_text("no folder")
        scene.kubelet.start()
        scene.start_plugin("--cdi")
        assert scene.said("/var/run/cdi"), scene.lines
        status, text = scene.page("readyz")
        assert (status, "mount /var/run/cdi" in text) == (503, True), text


def test_a_folder_of_kubelet_that_is_missing_is_told_with_the_remedy_and_served_when_it_is_there() -> None:
    with Scene() as scene:
        scene.machine.nic(0)
        scene.configure({"configList": [scene.share("ens0f0")]})
        scene.start_plugin()
        assert scene.said("start kubelet, or name its folder with --kubelet-dir"), scene.lines
        assert sum("start kubelet" in line for line in scene.lines) == 1
        scene.kubelet.start()
        assert is_whole(scene, 63), scene.lines


def test_a_folder_of_kubelet_that_is_read_only_is_told_with_the_remedy_and_no_number_of_the_system() -> None:
    with Scene() as scene:
        scene.machine.nic(0)
        scene.configure({"configList": [scene.share("ens0f0")]})
        scene.kubelet.start()
        scene.make_read_only(scene.kubelet.folder)
        scene.start_plugin()
        assert scene.said("Read-only file system: mount it writable"), scene.lines
        assert "mount it writable" in scene.page("readyz")[1]
        assert scene.end_plugin() == 0
        assert not [line for line in scene.lines if "Errno" in line or "Traceback" in line]


def test_a_device_that_is_gone_is_refused_by_name(scene: Scene) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        scene.kubelet.allocate("pod/gone", SHARED, ids=["0000:99:00.0-1"])
    assert "has no device 0000:99:00.0-1 any more; its NICs and functions: 0000:30:00.0, 0000:31:00.0" in str(
        refused.value
    )


def test_a_socket_that_a_starting_kubelet_has_removed_is_not_registered(scene: Scene) -> None:
    """kubelet would wait for it, and the plugin for kubelet."""
    scene.kubelet.stop(killed=True)
    scene.kubelet.start(busy=True)
    assert is_whole(scene), scene.lines
    assert scene.kubelet.missed == []


def test_a_plugin_registers_when_kubelets_socket_is_another(scene: Scene) -> None:
    before = scene.kubelet.registered.count(SHARED)
    scene.kubelet.listen_anew()
    assert scene.kubelet.until(lambda: scene.kubelet.registered.count(SHARED) > before)
    assert is_whole(scene)
    scene.kubelet.restart()
    assert is_whole(scene)


def test_a_plugin_whose_socket_was_removed_listens_at_another(scene: Scene) -> None:
    before = scene.kubelet.registered.count(SHARED)
    (path,) = scene.kubelet.folder.glob("railcni-*.sock")
    path.unlink()
    assert scene.kubelet.until(lambda: scene.kubelet.registered.count(SHARED) > before)
    assert is_whole(scene)
    scene.kubelet.allocate("pod/again", SHARED)


def test_devices_that_kubelet_takes_for_unhealthy_are_sent_again(scene: Scene) -> None:
    """kubelet does so when an old connection of the resource ends after the new one has begun."""
    scene.kubelet.restart()
    assert is_whole(scene)
    known = scene.kubelet.resources[SHARED]
    known.unhealthy, known.healthy = known.healthy, set()
    assert is_whole(scene)


def test_a_version_that_kubelet_does_not_speak_is_said_and_tried_again(scene: Scene) -> None:
    scene.kubelet.versions = ("v1beta2",)
    scene.kubelet.restart()
    assert scene.said(
        "kubelet does not register rdma/hca_shared_devices_a: requested API version 'v1beta1' is not supported"
    )
    scene.kubelet.versions = ("v1beta1", "v1beta2")
    assert is_whole(scene)


def test_health_follows_the_port_in_both_directions(scene: Scene) -> None:
    scene.machine.port("mlx5_0", "1: DOWN")
    assert is_whole(scene, 50)
    assert scene.kubelet.capacity(SHARED) == 100
    assert scene.said("mlx5_0 port 1 is DOWN")
    given = scene.kubelet.allocate("pod/healthy", SHARED)
    assert "/dev/infiniband/uverbs1" in {device.host_path for device in given.devices}
    scene.machine.port("mlx5_0", "4: ACTIVE")
    assert is_whole(scene, 100)


def test_gids_that_come_after_the_state_of_their_port_count() -> None:
    with Scene() as scene:
        scene.machine.nic(0, size=64)
        scene.machine.port("mlx5_0", "1: DOWN")
        scene.configure({"configList": [scene.share("ens0f0", most=1000)]})
        scene.kubelet.start()
        scene.start_plugin()
        assert scene.said("mlx5_0 port 1 is DOWN")
        scene.machine.port("mlx5_0", "4: ACTIVE")
        assert is_whole(scene, (64 - 1) // 2)
        scene.machine.tree.gid("mlx5_0", "fe80::1", ndev="ens0f0", kind="IB/RoCE v1")
        assert is_whole(scene, (64 - 2) // 4)


def test_a_changed_configuration_is_used_without_a_restart(scene: Scene) -> None:
    vf = {"resourceName": "vf", "selectors": {"pfNames": ["ens0f0"], "isRdma": True}}
    scene.configure({"configList": [{**PLAIN["configList"][0], "rdmaHcaMax": 30}], "resourceList": [vf]})
    assert is_whole(scene, 30)
    assert is_whole(scene, 2, "intel.com/vf")
    scene.configure(PLAIN)
    assert is_whole(scene, 100)
    assert is_whole(scene, 0, "intel.com/vf")


def test_what_is_wrong_with_a_changed_configuration_is_said_and_the_rest_is_used(scene: Scene) -> None:
    scene.configure(
        json.dumps({"configList": [{"resourceName": "b", "rdmaHcaMax": -5, "devices": ["x"]}, *PLAIN["configList"]]})
    )
    assert scene.said("-5: want 0 or more")
    line = next(line for line in scene.lines if "-5: want 0 or more" in line)
    assert f"place={scene.config}:1:53 key=configList[0].rdmaHcaMax" in line and 'fix="write a number' in line
    sentence = f"{scene.config}:1:53: configList[0].rdmaHcaMax: -5: want 0 or more; write a number"
    assert scene.kubelet.until(lambda: scene.page("readyz")[1].startswith(sentence))
    scene.configure('{"configList": [')
    assert scene.said("the configuration cannot be read: the former one stays in use")
    assert scene.kubelet.allocatable(SHARED) == 100
    assert scene.kubelet.until(lambda: scene.page("readyz")[0] == 503)


def test_probes_and_metrics_tell_what_kubelet_has(scene: Scene) -> None:
    assert scene.said("the configuration was read")
    assert scene.page("healthz") == scene.page("readyz") == (200, "ok\n")
    status, text = scene.page("metrics")
    assert status == 200
    assert f'railcni_device_plugin_devices{{resource="{SHARED}",health="healthy"}} 100' in text
    assert f'railcni_device_plugin_served{{resource="{SHARED}"}} 1' in text
    found = {name: int(n) for name, n in re.findall(r'railcni_gid_table_(\w+)\{device="mlx5_0",port="1"\} (\d+)', text)}
    assert 0 < found["entries"] < found["size"] == 128
    scene.kubelet.stop()
    unready = (503, f"kubelet does not listen to {SHARED}\n")
    assert scene.kubelet.until(lambda: scene.page("readyz") == unready)
    scene.kubelet.start()


def test_an_exclusive_function_comes_with_its_variables_and_its_device_info_file(scene: Scene) -> None:
    scene.configure(
        {"resourceList": [{"resourceName": "one", "selectors": [{"pfNames": ["ens0f0#1"], "isRdma": True}]}]}
    )
    assert is_whole(scene, 1, "intel.com/one")
    given = scene.kubelet.allocate("pod/vf", "intel.com/one")
    address = scene.machine.vf(0, 1)
    assert given.envs["PCIDEVICE_INTEL_COM_ONE"] == address
    assert (
        json.loads(given.envs["PCIDEVICE_INTEL_COM_ONE_INFO"])[address]["rdma"]["uverbs"] == "/dev/infiniband/uverbs101"
    )
    folder = scene.folder / "var/run/k8s.cni.cncf.io/devinfo/dp"
    (path,) = folder.iterdir()
    assert path.name == f"intel.com-one-{address}-device.json"
    document = json.loads(path.read_text())
    assert (document["type"], document["pci"]["pci-address"]) == ("pci", address)


@pytest.mark.parametrize(
    ("by_path", "pods"),
    [(True, True), pytest.param(False, False, marks=pytest.mark.long)],
    ids=["kubelet", "older kubelet"],
)
def test_a_plugin_that_was_killed_starts_again_and_no_container_loses_its_device(by_path: bool, pods: bool) -> None:
    """The plugin is there before kubelet."""
    with Scene(by_path, pods) as scene:
        scene.machine.nic(0)
        scene.configure({"configList": [scene.share("ens0f0", most=10)]})
        scene.start_plugin()
        assert scene.said("railcni device-plugin serves")
        scene.kubelet.start()
        assert is_whole(scene, 10), scene.lines
        scene.kubelet.allocate("pod/kept", SHARED)
        kept = scene.kubelet.pod_devices["pod/kept"][SHARED]
        scene.end_plugin(signal.SIGKILL)
        left = {path.name for path in scene.kubelet.folder.glob("railcni-*.sock")}
        scene.start_plugin()
        # Until the new process is up, all may still look whole from before the kill.
        assert scene.kubelet.until(lambda: not left & {path.name for path in scene.kubelet.folder.iterdir()}), left
        assert is_whole(scene, 10), scene.lines
        known = scene.kubelet.resources[SHARED]
        assert set(kept) <= known.healthy
        if not pods:  # as when kubelet sees the end of the killed one's connection later
            known.unhealthy, known.healthy = known.healthy, set()
            assert is_whole(scene, 10), scene.lines
        assert scene.end_plugin() == 0
        assert [*scene.kubelet.folder.glob("railcni-*")] == []


def test_a_resource_that_another_plugin_serves_is_left_to_it_and_taken_when_it_has_gone() -> None:
    with Scene() as scene:
        scene.machine.nic(0)
        scene.configure({"configList": [scene.share("ens0f0", most=10), scene.share("ens0f0", most=7, name="b")]})
        scene.kubelet.start()
        with Other(scene.kubelet, SHARED, ["0", "1", "2"]):
            assert is_whole(scene, 3)
            scene.start_plugin()
            assert is_whole(scene, 7, "rdma/b")
            told = "another device plugin serves rdma/hca_shared_devices_a, with 3 devices: remove it, or give the resource another name"
            assert scene.said(told)
            assert scene.kubelet.registered.count(SHARED) == 1
            unready = (503, f"another device plugin serves {SHARED}\n")
            assert scene.kubelet.until(lambda: scene.page("readyz") == unready)
        assert is_whole(scene, 10)


def test_with_cdi_there_is_a_specification_for_each_resource_and_it_outlives_the_plugin() -> None:
    with Scene() as scene:
        folder = scene.folder / "var/run/cdi"
        folder.mkdir(parents=True)
        (folder / "railcni-rdma_gone.json").write_text("{}")
        (folder / "nvidia.json").write_text("{}")
        scene.machine.nic(0)
        scene.configure({"configList": [scene.share("ens0f0", most=10)]})
        scene.kubelet.start()
        scene.start_plugin("--cdi")
        assert is_whole(scene, 10)
        given = scene.kubelet.allocate("pod/cdi", SHARED)
        assert [device.name for device in given.cdi_devices] == [f"{SHARED}=0000:30:00.0"]
        assert dict(given.annotations) == {"cdi.k8s.io/rdma_hca_shared_devices_a": f"{SHARED}=0000:30:00.0"}
        scene.end_plugin()
        assert sorted(path.name for path in folder.iterdir()) == [
            "nvidia.json",
            "railcni-rdma_hca_shared_devices_a.json",
        ]


def test_a_stale_socket_is_removed_and_one_where_somebody_listens_stays(tmp_path: Path) -> None:
    from cni.resources.device_plugin.server import remove_stale

    here = Path(os.path.relpath(tmp_path))
    with socket.socket(socket.AF_UNIX) as dead, socket.socket(socket.AF_UNIX) as living:
        dead.bind(str(here / "railcni-a.sock"))
        living.bind(str(here / "railcni-b.sock"))
        living.listen()
        (tmp_path / "other.sock").touch()
        remove_stale(str(here))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other.sock", "railcni-b.sock"]


@pytest.fixture
def still(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    """A node on which the command is called in this process."""
    with Scene() as scene:
        scene.machine.nic(0)
        scene.machine.nic(1, state="1: DOWN", physical_state="3: Disabled")
        monkeypatch.setattr(sys, "argv", ["railcni", *scene.arguments()])
        yield scene


def test_show_tells_what_would_be_offered(still: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    sys.argv[1:] = [*still.arguments()[:3], "--show"]
    still.configure({"configList": [still.share("ens0f0", "ens1f0", most=10)]})
    assert main() == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert out.splitlines()[0].endswith("REASON")  # a limit is no fault
    assert [line.split()[:4] for line in out.splitlines()[1:]] == [
        [SHARED, "0000:30:00.0", "5", "0"],
        [SHARED, "0000:31:00.0", "5", "1"],
    ]
    assert "infiniband/uverbs0 infiniband/rdma_cm" in out
    assert "mlx5_1 port 1 is DOWN (Disabled)" in out


def test_show_tells_what_is_wrong(still: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    sys.argv[1:] = [*still.arguments()[:3], "--show", "-o", "json"]
    wrong = {"resourceName": "b", "rdmaHcaMax": -5, "devices": ["x"]}
    still.configure({"configList": [still.share("ens9f0", most=10), wrong]})
    assert main() == 1
    out, err = capsys.readouterr()
    assert "error: configList[1].rdmaHcaMax: -5: want 0 or more" in err
    unchosen = "no NIC or function is chosen: ifNames ens9f0: there are ens0f0, ens1f0"
    nothing = {"offers": [], "withheld": {}, "limit": "", "unchosen": unchosen}
    assert json.loads(out) == [{"resource": SHARED, "healthy": 0, **nothing}]


@pytest.mark.parametrize(
    ("text", "fault"), [("{", "not JSON"), ("[]", "want an object with configList"), (None, "cannot be read")]
)
def test_a_plugin_without_a_configuration_does_not_start(
    still: Scene, capsys: pytest.CaptureFixture[str], text: str | None, fault: str
) -> None:
    if text is not None:
        still.configure(text)
    assert main() == 1
    assert fault in capsys.readouterr().err.splitlines()[0]


def test_without_grpc_the_command_says_what_to_install() -> None:
    code = "import sys; sys.modules['grpc'] = None; from cni.cli.main import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", code, "device-plugin"], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    assert done.stderr.startswith(
        "railcni: the package of the module grpc is missing: pip install grpcio protobuf, or use the image"
    )
