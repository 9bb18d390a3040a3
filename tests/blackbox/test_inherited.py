"""What a process inherits from its caller through exec, and no CNI specification speaks of: signals."""

import json
import sys
from typing import Any

import pytest

from cni.link.plugins import LINK_PLUGINS
from tests.node import CHROOT, Node

# Another's IPAM plugin: it answers ADD, and fails as its file `fails` says.
ANOTHERS_IPAM = """#!/bin/sh
cat >/dev/null
[ -e /run/others/fails ] && echo '{"cniVersion": "1.1.0", "code": 11, "msg": "no address today"}' && exit 1
[ "$CNI_COMMAND" = ADD ] && echo '{"cniVersion": "1.1.0", "ips": [{"address": "10.9.0.7/24"}]}'
exit 0
"""
INHERITED = {
    "SIGCHLD ignored": "signal.signal(signal.SIGCHLD, signal.SIG_IGN)",
    "SIGALRM ignored": "signal.signal(signal.SIGALRM, signal.SIG_IGN)",
    "SIGPIPE by default": "signal.signal(signal.SIGPIPE, signal.SIG_DFL)",
    "all that can be ignored": (
        "[signal.signal(n, signal.SIG_IGN) for n in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}]"
    ),
    "all blocked": "signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())",
}


@pytest.mark.skipif(bool(CHROOT), reason="the caller that sets the signals is Python: unset RAILCNI_CHROOT")
@pytest.mark.parametrize(
    ("plugin", "ipam", "inherited"),
    [  # each state of the signals with a plugin and an IPAM plugin in turn; `make long`: with each pair of these
        pytest.param(plugin, ipam, inherited, marks=() if n % 4 == 2 * plugins + ipams else pytest.mark.long)
        for n, inherited in enumerate(INHERITED)
        for plugins, plugin in enumerate(LINK_PLUGINS[:2])
        for ipams, ipam in enumerate(("anothers-ipam", "whereabouts"))
    ],
)
def test_a_call_is_served_whatever_signals_its_caller_has_set(
    node: Node, plugin: str, ipam: str, inherited: str
) -> None:
    node.master()
    node.host.add_veth("ens9", "ens9-peer")
    node.script("/run/others/anothers-ipam", ANOTHERS_IPAM)
    node.remember()
    pod = node.pod()
    block: dict[str, Any] = {"type": ipam, "range": "10.9.0.0/24", "datastore": "file"}
    config = {"cniVersion": "1.1.0", "name": "net", "master": "ens2f0", "device": "ens9", "ipam": block}
    calls = f"import os, signal, sys\n{INHERITED[inherited]}\nos.execv(sys.argv[1], sys.argv[1:])"

    def call(verb: str) -> tuple[int, Any]:
        env = node.environ(verb, netns=pod, path=[node.executables, "/run/others"])
        argv = [sys.executable, "-c", calls, node.executables / plugin]
        done = node.run(argv, env=env, stdin=json.dumps(config).encode())
        return done.returncode, json.loads(done.stdout or b"null")

    status, result = call("ADD")
    assert (status, [a["address"].split(".")[0] for a in result["ips"]]) == (0, ["10"]), result
    assert (call("DEL"), node.leftovers(settle=2)) == ((0, None), [])
    if ipam != "whereabouts":
        node.path("/run/others/fails").touch()
        status, result = call("ADD")
        assert (status, result["code"], result["msg"]) == (1, 11, f"{ipam}: no address today")
        node.path("/run/others/fails").unlink()
        assert (call("DEL"), node.leftovers(settle=2)) == ((0, None), [])
