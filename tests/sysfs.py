"""Trees of sysfs as machines with RDMA have them, made of plain files and links in a directory.

    tree = Tree(tmp_path)
    tree.netdev("ens2f0", pci="0000:3b:00.0", mtu=9000)
    tree.verbs("mlx5_0", pci="0000:3b:00.0", netdev="ens2f0")
    tree.gid("mlx5_0", "192.168.111.1", ndev="net1")

Layout: as seen with mlx5 (the verbs device below the PCI function), rxe (below devices/virtual, with an attribute
`parent`), bonds and VLANs (`lower_NAME`). A GID entry that is not in use has no type and ndev here; in a real tree
these files answer EINVAL, to the same effect.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from cni.shared.kernel import rdma_sysfs

EMPTY_GID = ":".join(["0000"] * 8)


class Tree:
    """A sysfs below `root`; `str(tree)` is what goes for /sys."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(parents=True, exist_ok=True)

    def __str__(self) -> str:
        return str(self.root)

    def put(self, folder: Path, values: Mapping[str, object]) -> None:
        """Attributes: files of one line each."""
        for name, value in values.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{value}\n")

    def link(self, place: str | Path, target: Path) -> None:
        """A symbolic link at `place`, relative as sysfs has them: it always ends with the name of what it leads to."""
        here = self.root / place
        here.parent.mkdir(parents=True, exist_ok=True)
        here.symlink_to(Path(os.path.relpath(target.parent, here.parent)) / target.name)

    def pci(
        self, address: str, above: Sequence[str] = (), driver: str = "", physical: str = "", **attributes: object
    ) -> Path:
        """The PCI function `address`, below the host bridge of its domain and the bridges `above`; its directory.

        `physical`: of a virtual function, its physical one, which is there already. A second call finds the first.
        """
        known = self.root / "bus/pci/devices" / address
        if known.is_symlink():
            folder = known.resolve()
        else:
            host = above[0] if above else address
            folder = self.root.joinpath("devices", f"pci{host[: host.index(':') + 3]}", *above, address)
            folder.mkdir(parents=True)
            self.link(f"bus/pci/devices/{address}", folder)
        if driver:
            target = self.root / "bus/pci/drivers" / driver
            target.mkdir(parents=True, exist_ok=True)
            self.link(folder.relative_to(self.root) / "driver", target)
        if physical:
            owner = (self.root / "bus/pci/devices" / physical).resolve()
            self.link(folder.relative_to(self.root) / "physfn", owner)
            number = len(list(owner.glob("virtfn*")))
            self.link(owner.relative_to(self.root) / f"virtfn{number}", folder)
        self.put(folder, attributes)
        return folder

    def netdev(
        self,
        name: str,
        pci: str = "",
        lower: Sequence[str] = (),
        port: int = 1,
        mtu: int = 9000,
        up: bool = True,
        **attributes: object,
    ) -> Path:
        """A netdev of the PCI function `pci`, or a virtual one on top of `lower`; its directory."""
        if pci:
            device = self.pci(pci)
            folder = device / "net" / name
            folder.mkdir(parents=True)
            self.link(folder.relative_to(self.root) / "device", device)
        else:
            folder = self.root / "devices/virtual/net" / name
            folder.mkdir(parents=True)
        self.link(f"class/net/{name}", folder)
        for below in lower:
            other = (self.root / "class/net" / below).resolve()
            self.link(folder.relative_to(self.root) / f"lower_{below}", other)
            self.link(other.relative_to(self.root) / f"upper_{name}", folder)
        index = len(list((self.root / "class/net").iterdir())) + 1
        usual = {"mtu": mtu, "dev_port": port - 1, "type": 1, "ifindex": index, "operstate": "up" if up else "down"}
        up_too = {"carrier": int(up), "flags": "0x1003" if up else "0x1002", "address": f"02:00:00:00:00:{index:02x}"}
        self.put(folder, {**usual, **up_too, **attributes})
        return folder

    def verbs(
        self,
        name: str,
        pci: str = "",
        netdev: str | Sequence[str] = "",
        size: int = 256,
        link_layer: str = "Ethernet",
        state: str = "4: ACTIVE",
        physical_state: str = "5: LinkUp",
        rate: str = "100 Gb/sec (4X EDR)",
        ports: int = 1,
        node_type: str = "1: CA",
        nodes: Mapping[str, str] = MappingProxyType({}),
        **attributes: object,
    ) -> Path:
        """A verbs device of the PCI function `pci`, or soft-RoCE (rxe) on `netdev`; its directory.

        The first GID of a port is that of its netdev, as the kernel makes it; `netdev` is one for each port. `nodes` are
        its character devices with their classes, {"uverbs0": "infiniband_verbs"}.
        """
        if pci:
            device = self.pci(pci)
            folder = device / "infiniband" / name
            folder.mkdir(parents=True)
            self.link(folder.relative_to(self.root) / "device", device)
        else:
            folder = self.root / "devices/virtual/infiniband" / name
            self.put(folder, {"parent": netdev})
        self.link(f"class/infiniband/{name}", folder)
        for node, kind in nodes.items():
            here = folder.parent.parent / kind / node
            self.put(here, {"ibdev": name})
            self.link(f"class/{kind}/{node}", here)
            if pci:
                self.link(here.relative_to(self.root) / "device", device)
        usual = {"node_type": node_type, "node_guid": "0c42:a103:0012:3456", "fw_ver": "28.39.1002"}
        self.put(folder, {**usual, **attributes})
        netdevs = [netdev] if isinstance(netdev, str) else netdev
        for number in range(1, ports + 1):
            port = {"state": state, "phys_state": physical_state, "rate": rate, "link_layer": link_layer}
            self.put(folder / "ports" / str(number), port)
            self.put(folder / "ports" / str(number), {f"gids/{n}": EMPTY_GID for n in range(size)})
            if size and netdevs[number - 1 :] and netdevs[number - 1] and link_layer == "Ethernet":
                self.gid(name, f"fe80::{number}", ndev=netdevs[number - 1], port=number)
        return folder

    def gid(
        self, device: str, address: str, ndev: str = "", kind: str = rdma_sysfs.ROCE_V2, port: int = 1, index: int = -1
    ) -> int:
        """An entry of a port's GID table, the first that is free unless `index` says which; its index."""
        here = self.root / "class/infiniband" / device / "ports" / str(port)
        if index < 0:
            free = (n for n in range(1 << 16) if (here / "gids" / str(n)).read_text().strip() == EMPTY_GID)
            index = next(free)
        self.put(here, {f"gids/{index}": rdma_sysfs.gid_of(address), f"gid_attrs/types/{index}": kind})
        if ndev:
            self.put(here, {f"gid_attrs/ndevs/{index}": ndev})
        return index
