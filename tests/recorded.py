"""The sysfs of real machines: recorded as text, and laid down again below a directory.

    python -m tests.recorded > tests/fixtures/sysfs/NAME    as root, on the machine: what railcni reads of it

A line is a path below /sys, and what is there. N..M in a path stands for all numbers between, which have the same:

    PATH -> TARGET      a symbolic link
    PATH /              a directory
    PATH = TEXT         a file, without the end of its line
    PATH # SIZE HEX     a file of SIZE bytes, without the zeros at its end

Files that sysfs shows and does not let anybody read, as those of GIDs that are not in use, are left out.
"""

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

_FOLDER = Path(__file__).parent / "fixtures" / "sysfs"
_CLASSES = ("class/infiniband", "class/net", "class/infiniband_verbs", "class/infiniband_mad", "bus/pci/devices")
_SINGLE = ("class/misc/rdma_cm", "devices/system/node/online")
_MODULES = ("ib_core", "ib_uverbs", "rdma_ucm", "mlx5_ib", "nvidia_peermem", "nv_peer_mem")
_ATTRIBUTES = [
    "parent", "node_type", "node_guid", "fw_ver", "ports/*/link_layer", "ports/*/state", "ports/*/phys_state",
    "ports/*/rate", "ports/*/gids/*", "ports/*/gid_attrs/types/*", "ports/*/gid_attrs/ndevs/*", "device", "mtu",
    "ifindex", "operstate", "carrier", "flags", "type", "dev_port", "address", "lower_*", "upper_*", "dev", "ibdev",
    "vendor", "class", "numa_node", "driver", "physfn", "virtfn*", "sriov_numvfs", "sriov_totalvfs",
    "current_link_speed", "current_link_width", "max_link_speed", "max_link_width", "config", "iommu_group/type",
    "infiniband/*", "net/*", "qos/trust",
]  # fmt: skip
_NUMBERED = re.compile(r"(.*/)(\d+)( = .*)")


def record(root: str = "/sys") -> Iterator[str]:
    """The lines of this machine, each path once."""
    found: dict[str, str] = {}
    for name in _MODULES:
        if os.path.isdir(f"{root}/module/{name}"):
            found[f"module/{name}"] = "/"
    places = [
        *_SINGLE,
        *(f"{c}/{n}" for c in _CLASSES if os.path.isdir(f"{root}/{c}") for n in os.listdir(f"{root}/{c}")),
    ]
    for place in places:
        path = Path(root, place)
        if path.is_symlink():
            found[place] = f"-> {path.readlink()}"
        real = path.resolve()
        files = [real] if real.is_file() else [file for name in _ATTRIBUTES for file in real.glob(name)]
        found.update((str(file.relative_to(root)), said) for file in files if (said := _said(file)))
    return _shortened([f"{path} {said}" for path, said in sorted(found.items(), key=lambda item: _order(item[0]))])


def _said(file: Path) -> str:
    if file.is_symlink():
        return f"-> {file.readlink()}"
    if file.is_dir():
        return "/"
    try:
        data = file.read_bytes()
    except OSError:
        return ""
    return (
        f"# {len(data)} {data.rstrip(bytes(1)).hex()}"
        if file.name == "config"
        else f"= {data.decode().strip()}".strip()
    )


def _order(path: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in path.split("/")]


def _shortened(lines: list[str]) -> Iterator[str]:
    """Lines of consecutive numbers with the same content as one."""
    first = last = ""
    for line in [*lines, ""]:
        former, now = _NUMBERED.fullmatch(last), _NUMBERED.fullmatch(line)
        if former and now and (now[1], int(now[2]), now[3]) == (former[1], int(former[2]) + 1, former[3]):
            last = line
            continue
        if first:
            begin = _NUMBERED.fullmatch(first)
            yield f"{begin[1]}{begin[2]}..{former[2]}{begin[3]}" if begin and former and first != last else first
        first = last = line


def lay(name: str, root: Path) -> str:
    """Lay down the machine `name` of tests/fixtures/sysfs below `root`, and return what goes for /sys."""
    for line in (_FOLDER / name).read_text().splitlines():
        path, mark, content = re.fullmatch(r"(\S+) (->|[/=#]) ?(.*)", line).groups()  # type: ignore[union-attr]
        span = re.fullmatch(r"(.*/)(\d+)\.\.(\d+)", path)
        paths = [f"{span[1]}{n}" for n in range(int(span[2]), int(span[3]) + 1)] if span else [path]
        for file in (root / p for p in paths):
            file.parent.mkdir(parents=True, exist_ok=True)
            if mark == "->":
                file.symlink_to(content)
            elif mark == "/":
                file.mkdir(exist_ok=True)
            elif mark == "=":
                file.write_text(f"{content}\n")
            else:
                size, _, digits = content.partition(" ")
                file.write_bytes(bytes.fromhex(digits).ljust(int(size), b"\0"))
    return str(root)


if __name__ == "__main__":
    sys.stdout.writelines(f"{line}\n" for line in record())
