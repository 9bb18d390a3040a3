"""What `railcni --help` shows: the commands in groups, and examples."""

from __future__ import annotations

import argparse

GROUPS = {
    "look at a node": ("status", "doctor", "rdma", "attachments", "support-bundle"),
    "networks": ("nad", "rails", "demo"),
    "addresses": ("ipam",),
    "a cluster": ("cluster",),
    "set up a node": ("install", "uninstall", "agent", "device-plugin", "dranet-ipam", "vfs", "warm"),
    "call plugins by hand": ("attach", "detach", "check", "gc"),
}
EXAMPLES = """\
examples:
  railcni demo                             two pods on one network, on this machine
  railcni doctor                           what is wrong with the RDMA of this node
  railcni doctor --pod team/train-0        what is wrong with that of a pod
  railcni nad lint rdma-net.yaml           the faults of a NetworkAttachmentDefinition
  railcni ipam show 192.168.111.7          which pod has an address
  kubectl railcni status                   all nodes of a cluster
"""


class Overview(argparse.RawDescriptionHelpFormatter):
    """Lists the commands in GROUPS."""

    def _format_action(self, action: argparse.Action) -> str:
        if not isinstance(action, argparse._SubParsersAction):
            return super()._format_action(action)
        listed = {one.dest: one for one in action._get_subactions()}
        parts = []
        for title, names in GROUPS.items():
            parts.append(f"{' ' * self._current_indent}{title}:\n")
            self._indent()
            parts += [super(Overview, self)._format_action(listed[name]) for name in names if name in listed]
            self._dedent()
        return "".join(parts)
