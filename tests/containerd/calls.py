"""The calls of a plugin, recorded below a real caller, and their comparison with tests/callers.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.callers import Caller
from tests.node import BIN, Node

# They say which machine, pod or cluster it is.
_OF_RUN = {"HOSTNAME", "MULTUS_NODE_NAME", "KUBERNETES_SERVICE_HOST", "KUBERNETES_PORT", "KUBERNETES_PORT_443_TCP"}
_OF_RUN |= {"KUBERNETES_PORT_443_TCP_ADDR"}
_FOLDER = "/run/recorder"
# In place of a plugin: writes the variables of each call below the folder, and runs the plugin.
_RECORDER = """#!/bin/sh
umask 077
call={folder}/$(date +%s%N)-$$
cat /proc/$$/environ > $call.environ
exec {plugin}
"""


def recorder(node: Node, plugin: str) -> Path:
    """The path, in the node, of a plugin that records its calls and runs `plugin`."""
    folder = node.path(_FOLDER)
    folder.mkdir()
    path = folder / plugin
    path.write_text(_RECORDER.format(folder=_FOLDER, plugin=BIN / plugin))
    path.chmod(0o755)
    return Path(_FOLDER, plugin)


def recorded(node: Node) -> list[dict[str, str]]:
    """The variables of the recorded calls, in their order."""
    found = [path.read_text().split("\0") for path in sorted(node.path(_FOLDER).glob("*.environ"))]
    return [dict(entry.split("=", 1) for entry in entries if entry) for entries in found]


def differing(calls: Sequence[Mapping[str, str]], caller: Caller, **names: str) -> list[Any]:
    """What the variables, arguments and order of recorded calls have otherwise than the table; [] when nothing. `names` are
    those of the pod. Of a variable that says which machine or run it is, the name counts, and a call that is repeated counts once:
    kubelet removes a sandbox several times."""
    order = [(call["CNI_COMMAND"], bool(call["CNI_NETNS"]), call["CNI_IFNAME"]) for call in calls]
    order = [step for number, step in enumerate(order) if step != order[number - 1] or not number]
    found: list[Any] = [order] if order != [(*step[:2], caller.ifname) for step in caller.order] else []
    for call in calls:
        wanted = caller.args_of(container=call["CNI_CONTAINERID"], **names)
        others = {name: value for name, value in call.items() if not name.startswith("CNI_")}
        others |= {"PATH": others["PATH"].removesuffix(":/opt/nri/bin")}
        others |= {name: caller.environ[name] for name in others.keys() & caller.environ.keys() if name in _OF_RUN}
        found += [call["CNI_ARGS"]] * (sorted(call["CNI_ARGS"].split(";")) != sorted(wanted.split(";")))
        found += sorted(others.items() ^ caller.environ.items())
    return found
