"""How many functions an ADD of macvlan with the file store calls once warm, and the modules that its worker has loaded.

Both are the same on every machine. `python -m tests.bench.functions` prints them, and who calls most.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.node import Node

ROOT = Path(__file__).resolve().parents[2]
CONFIG = {
    "cniVersion": "1.1.0", "name": "net", "type": "macvlan", "master": "ens2f0",
    "ipam": {"type": "whereabouts", "range": "192.168.111.0/24", "datastore": "file"},
}  # fmt: skip
_CALLS = """
import cProfile, json, os, pstats, sys

sys.path.insert(0, sys.argv[1])
from cni.link import run
from cni.link.plugins import whereabouts

kept = whereabouts.keep_open()
environ = dict(os.environb)


def add(first):
    for number in range(first, first + 40):
        environ[b"CNI_CONTAINERID"] = environ[b"CNI_IFNAME"] = b"c%d" % number
        reply, status = run.serve("macvlan", environ, sys.argv[2].encode())
        assert status == 0, reply
        kept.end_call()


add(0)
ours = [module.__file__ for name, module in sys.modules.items() if name.partition(".")[0] in ("cni", "ipam")]
profile = cProfile.Profile()
profile.runcall(add, 40)
found = pstats.Stats(profile)
print(json.dumps([found.total_calls / 40, len(ours), sum(len(open(path).readlines()) for path in ours)]))
found.sort_stats("ncalls").print_stats(30)
"""


def of_add() -> tuple[dict[str, str], str]:
    """The facts, and the functions that are called most."""
    with Node() as node:
        node.host.add_veth("ens2f0", "ens2f0-peer", mtu=9000)  # as in scene.py
        environ = {"CNI_COMMAND": "ADD", "CNI_NETNS": node.pod().path, "CNI_PATH": str(node.executables)}
        done = node.run([sys.executable, "-c", _CALLS, str(ROOT), json.dumps(CONFIG)], env=environ)
    if done.returncode:
        raise RuntimeError(done.stderr.decode())
    first, _, rest = done.stdout.decode().partition("\n")
    calls, modules, lines = json.loads(first)
    return {
        "calls of functions in a warm ADD of macvlan": f"{calls:,.0f}, mean of 40 ADDs after 40 others",
        "modules of ours that its worker has loaded": f"{modules}, with {lines:,} lines",
    }, rest


if __name__ == "__main__":
    facts, most = of_add()
    print(*(f"{key}: {value}" for key, value in facts.items()), most, sep="\n")
