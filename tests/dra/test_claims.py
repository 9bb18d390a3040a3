"""A driver that is killed at any step of a claim: the next call, or the next start, finds what there is."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from cni.node.service.log import AgentLog
from cni.resources import containers
from cni.resources.choose import Offer, Resource
from cni.resources.dra.claims import Claims
from cni.resources.dra.kubelet import Endpoint
from cni.resources.dra.slices import Device
from tests.dra.kubelet import result

CLAIM = {"uid": "u-1", "namespace": "team", "name": "c"}
NODES = (("/dev/infiniband/uverbs0", "/dev/infiniband/uverbs0"),)
OFFER = Offer("0000:30:00.1", ("0000:30:00.1",), NODES, info={"a": 1}, file={"type": "pci"})
DEVICES = {"vf": Device(Resource("intel.com/vf", (OFFER,), is_exclusive=True), OFFER, {"name": "vf"})}


class Killed(BaseException):
    """Stands for SIGKILL."""


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("step", [1, 2, 3])
@pytest.mark.parametrize("then", ["prepare", "unprepare", "restore"])
def test_a_preparation_that_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int, then: str) -> None:
    whole, claims = tmp_path / "whole", Claims(str(tmp_path / "records"), str(tmp_path), str)
    Claims(str(whole / "records"), str(whole), str).prepare(CLAIM, [result("vf")], DEVICES)
    wanted, written, write = files(whole), [], containers.write

    def killed(folder: str, name: str, document: object, durable: bool = False) -> None:
        written.append(name)
        if len(written) == step:
            raise Killed
        write(folder, name, document, durable)

    monkeypatch.setattr(containers, "write", killed)
    with pytest.raises(Killed):
        claims.prepare(CLAIM, [result("vf")], DEVICES)
    assert written[0] == "u-1.json"
    monkeypatch.setattr(containers, "write", write)
    made = files(tmp_path / "records")
    if then == "prepare":
        claims.prepare(CLAIM, [result("vf")], DEVICES)
    elif then == "restore":
        claims.restore()
    else:
        claims.unprepare("u-1")
    there = [path.name for path in tmp_path.rglob("*") if path.is_file() and whole not in path.parents]
    is_there = then == "prepare" or (then == "restore" and made)
    assert sorted(there) == (wanted if is_there else [])


def test_a_record_that_a_power_loss_has_torn_is_made_again_or_removed(tmp_path: Path) -> None:
    claims = Claims(str(tmp_path / "records"), str(tmp_path), str)
    claims.prepare(CLAIM, [result("vf")], DEVICES)
    (tmp_path / "records/u-1.json").write_text('{"uid')
    assert claims.restore() == []
    assert claims.prepare(CLAIM, [result("vf")], DEVICES)["uid"] == "u-1"
    (tmp_path / "records/u-1.json").write_text("")
    claims.unprepare("u-1")
    assert "u-1.json" not in files(tmp_path) and not any("dra." in name for name in files(tmp_path))


def test_a_folder_that_is_not_kubelets_is_named_and_gets_nothing(tmp_path: Path) -> None:
    def unused(*_: object) -> Any:
        raise AssertionError

    endpoint = Endpoint(str(tmp_path), AgentLog(), unused, unused, unused)
    with pytest.raises(FileNotFoundError, match="name its folder with --kubelet-root") as fault:
        asyncio.run(endpoint.attend())
    assert fault.value.filename == str(tmp_path / "plugins_registry")
    assert list(tmp_path.iterdir()) == []
