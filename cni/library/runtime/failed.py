"""The errors when a runtime runs plugins: one of them, or several steps of one operation."""

from __future__ import annotations

from collections.abc import Sequence

from cni.shared.spec.errors import CniError


class PluginFailed(CniError):
    """A plugin answered an error. `plugin` is its type, `verb` its CNI_COMMAND; the rest is the plugin's own."""

    def __init__(self, plugin: str, verb: str, msg: str, details: str = "", code: int = 0) -> None:
        super().__init__(msg, details)
        self.plugin = plugin
        self.verb = verb
        self.code = code


class StepsFailed(CniError):
    """Several steps of one operation failed, each with the error in `faults`; the code is the first one's."""

    def __init__(self, faults: Sequence[CniError]) -> None:
        super().__init__(f"{len(faults)} steps failed", code=faults[0].code)
        self.faults = list(faults)
