"""What the kernel here has, found out once by making one of each in a network namespace that goes at once."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from functools import cache

_MAKE = {
    "bond": "ip link add x0 type bond", "vlan": "ip link add link v0 name x0 type vlan id 7",
    "dummy": "ip link add x0 type dummy", "ipvlan": "ip link add link v0 name x0 type ipvlan",
    "macvtap": "ip link add link v0 name x0 type macvtap",
    "vxlan": "ip link add x0 type vxlan id 7 dev v0 dstport 4789", "htb": "tc qdisc add dev v0 root handle 1: htb",
}  # fmt: skip


@cache
def _has(feature: str) -> bool:
    script = f"ip link add v0 type veth peer name v1 && {_MAKE[feature]}"
    return subprocess.run(["unshare", "--net", "sh", "-c", script], capture_output=True).returncode == 0


def missing(needs: Iterable[str]) -> str:
    """Why a scene with these needs cannot be had here, and where it can; "" when it can."""
    lacking = [feature for feature in needs if not _has(feature)]
    return f"the kernel here has no {', '.join(lacking)}: `make lab` runs it" if lacking else ""
