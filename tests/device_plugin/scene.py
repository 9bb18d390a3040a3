"""A node for the device plugin: sysfs, device nodes, kubelet and the plugin's process, all in one short path."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from tests import node as nodes
from tests.device_plugin.kubelet import SECONDS, Kubelet
from tests.node import ROOT
from tests.sysfs import Tree

MLX5 = {"vendor": "0x15b3", "device": "0x101d", "class": "0x020000"}
SHARED = "rdma/hca_shared_devices_a"
_COMMAND = "import sys; sys.argv[0] = 'railcni'; from cni.cli.main import main; sys.exit(main())"


class Machine:
    """The folders of a node below `root`, with NICs as they are added."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.tree = Tree(root / "sys")
        (root / "dev/infiniband").mkdir(parents=True)
        self.node("infiniband/rdma_cm")

    def node(self, name: str) -> None:
        """A device node, which is looked for and never opened."""
        path = self.root / "dev" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()

    def nic(self, number: int, vfs: int = 0, size: int = 128, **options: Any) -> str:
        """An mlx5 NIC ens{number}f0 with its verbs device mlx5_{number}, and VFs; its PCI address."""
        address = f"0000:{0x30 + number:02x}:00.0"
        self._function(address, f"ens{number}f0", f"mlx5_{number}", number, size=size, **options)
        if vfs:
            self.tree.put(self.tree.pci(address), {"sriov_numvfs": vfs, "sriov_totalvfs": 8})
        for vf in range(vfs):
            self.tree.pci(self.vf(number, vf), physical=address)
            self._function(
                self.vf(number, vf), f"ens{number}v{vf}", f"mlx5_{number}v{vf}", 100 * (number + 1) + vf, size=8
            )
        return address

    def vf(self, number: int, vf: int) -> str:
        return f"0000:{0x30 + number:02x}:00.{vf + 1}"

    def _function(self, address: str, netdev: str, verbs: str, index: int, **options: Any) -> None:
        self.tree.pci(address, driver="mlx5_core", numa_node=index % 2, **MLX5)
        self.tree.netdev(netdev, pci=address)
        nodes = {
            f"uverbs{index}": "infiniband_verbs",
            f"umad{index}": "infiniband_mad",
            f"issm{index}": "infiniband_mad",
        }
        self.tree.verbs(verbs, pci=address, netdev=netdev, nodes=nodes, **options)
        for name in nodes:
            self.node(f"infiniband/{name}")

    def rxe(self, name: str, netdev: str, index: int) -> None:
        self.tree.verbs(name, netdev=netdev, nodes={f"uverbs{index}": "infiniband_verbs"})
        self.node(f"infiniband/uverbs{index}")

    def port(self, device: str, state: str) -> None:
        """The state of the device's port from now on, "4: ACTIVE"."""
        path = self.root / "sys/class/infiniband" / device / "ports/1/state"
        new = path.with_name("state.new")
        new.write_text(f"{state}\n")
        os.replace(new, path)


class Scene:
    """A machine with kubelet and the plugin; use it in a `with`."""

    def __init__(self, by_path: bool = True, pods: bool = True, real: bool = False, inside: Sequence[str] = ()) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="dp"))
        self.root = Path("/") if real else self.folder  # whose sys and dev the plugin reads
        self.machine = Machine(self.folder)
        self.config = self.folder / "config.json"
        self.kubelet = Kubelet(self.folder / "k", self.folder / "pods.sock", by_path)
        self.with_pods = pods
        self.inside = inside  # the words of a program that runs the plugin elsewhere, as the same process
        self.plugin: subprocess.Popen[str] | None = None
        self.lines: list[str] = []
        self.url = ""  # of the plugin's probes
        self._said = threading.Condition()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.end_plugin()
        self.kubelet.stop()
        shutil.rmtree(self.folder)

    def configure(self, document: object) -> None:
        text = document if isinstance(document, str) else json.dumps(document)
        new = self.config.with_suffix(".new")
        new.write_text(text)
        os.replace(new, self.config)

    def share(
        self, *netdevs: str, most: int = 100, name: str = "hca_shared_devices_a", **more: object
    ) -> dict[str, Any]:
        """A member of configList: a resource of the RDMA shared device plugin."""
        return {"resourceName": name, "rdmaHcaMax": most, "selectors": {"ifNames": list(netdevs)}, **more}

    def arguments(self, *more: str) -> list[str]:
        pods = self.kubelet.pods if self.with_pods else self.folder / "none.sock"
        return [
            *("device-plugin", f"--config={self.config}", f"--root={self.root}"),
            *(f"--kubelet-dir={self.kubelet.folder}", f"--pod-resources={pods}", "--listen=127.0.0.1:0", *more),
        ]

    def start_plugin(self, *more: str) -> subprocess.Popen[str]:
        command = [*self.inside, sys.executable, "-c", _COMMAND, *self.arguments(*more)]
        self.url = ""
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        self.plugin = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
        threading.Thread(target=self._read, args=(self.plugin,), daemon=True).start()
        return self.plugin

    def make_read_only(self, folder: Path) -> None:
        """Let the plugin start in a mount namespace of its own, in which `folder` is read-only."""
        mount = f"mount --bind {folder} {folder} && mount -o remount,bind,ro {folder}"
        self.inside = ["unshare", "--mount", "sh", "-c", f'{mount} && exec "$@"', "sh"]

    def end_plugin(self, number: int = signal.SIGTERM) -> int:
        """End the plugin by a signal; its exit code, 0 when there is none."""
        plugin, self.plugin = self.plugin, None
        if plugin is None:
            return 0
        plugin.send_signal(number)
        return plugin.wait(SECONDS)

    def said(self, text: str, seconds: float = SECONDS) -> bool:
        """Whether a line of the plugin's log has this text, or gets to."""
        with self._said:
            return self._said.wait_for(lambda: any(text in line for line in self.lines), seconds)

    def is_up(self) -> bool:
        """Whether the plugin serves, or gets to."""
        with self._said:
            return self._said.wait_for(lambda: bool(self.url), SECONDS)

    def page(self, name: str) -> tuple[int, str]:
        return nodes.page(f"{self.url}/{name}")

    def _read(self, plugin: subprocess.Popen[str]) -> None:
        assert plugin.stderr is not None
        with plugin.stderr as lines:
            for line in lines:
                with self._said:
                    self.lines.append(line.rstrip())
                    if " url=" in line:
                        self.url = line.rpartition(" url=")[2].strip().removesuffix("/readyz")
                    self._said.notify_all()
