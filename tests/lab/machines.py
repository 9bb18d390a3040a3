"""The machines of the lab: a kernel, what hangs on its bus, and what is done to it before the tests."""

import ast
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Machine:
    """`kernel` is one of packages.KERNELS; `qemu` and `append` are more arguments of QEMU and of the kernel; `before`
    are shell lines that are run first; `module` is a kernel module beside this file, that is built and loaded."""

    name: str
    kernel: str
    about: str
    qemu: tuple[str, ...] = ()
    append: str = ""
    before: str = ""
    module: str = ""


def _port(number: int) -> tuple[str, ...]:
    """A PCI Express port with a network card that has VFs, on a network of QEMU's that nobody else is on."""
    card = f"igb,bus=rp{number},netdev=u{number},mac=02:00:00:00:0{number}:00,romfile="
    return (
        *("-device", f"pcie-root-port,id=rp{number},slot={number},chassis={number}"),
        *("-netdev", f"hubport,id=u{number},hubid={number}", "-device", card),
    )


MACHINES = {
    machine.name: machine
    for machine in (
        Machine("roce", "stable", "soft-RoCE, shared netns mode", before="modprobe rdma_rxe"),
        Machine("roce-new", "new", "soft-RoCE in each network namespace", before="modprobe rdma_rxe"),
        Machine(
            "exclusive",
            "stable",
            "soft-RoCE, exclusive netns mode; a helper module lets its devices change namespaces",
            before="modprobe rdma_rxe && rdma system set netns exclusive",
            module="rxe_nsmove",
        ),
        Machine(
            "hosts",
            "stable",
            "links of kinds that a kernel may lack",
            before="modprobe -a bonding 8021q ipvlan ipvtap macvtap dummy vxlan team vrf sch_htb sch_ingress",
        ),
        Machine(
            "sriov", "stable", "two network cards with VFs", (*_port(1), *_port(2)), before="modprobe -a igb igbvf"
        ),
        Machine(
            "iommu",
            "stable",
            "a network card with VFs behind an IOMMU",
            qemu=("-M", "q35,kernel-irqchip=split", "-device", "intel-iommu,intremap=on", *_port(1)),
            append="intel_iommu=on",
            before="modprobe -a igb igbvf vfio-pci",
        ),
    )
}


def tests(name: str) -> list[Path]:
    """The files of tests for the machine `name`: those whose constant MACHINES has it."""
    return [path for path in sorted(FOLDER.glob("test_*.py")) if name in _machines(path)]


def _machines(path: Path) -> tuple[str, ...]:
    """The constant MACHINES of a file, which is read and not run. ValueError: it has none, or of machines unknown."""
    for statement in ast.parse(path.read_text()).body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "MACHINES":
            found = tuple(ast.literal_eval(statement.value))
            if not found or set(found) - set(MACHINES):
                raise ValueError(f"{path}: MACHINES names {found}, and there are {', '.join(MACHINES)}")
            return found
    raise ValueError(f'{path} has no constant such as MACHINES = ("roce",)')
