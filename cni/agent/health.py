"""The health of this node's installation, for a kubelet's probes."""

from __future__ import annotations

import argparse

from cni.library.installation import health, layout
from cni.library.installation.options import folder_of, state_of
from cni.shared.spec.errors import CniError


class Health:
    """The health of the installation that `options` mean.

    It is found anew at each question; the plugins are executed only when one of their files has changed since, so that a
    probe costs some system calls.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._known_good: tuple[object, ...] = ()  # the fingerprint of plugins that were seen to run

    def faults(self) -> list[str]:
        """What is wrong now; [] when nothing is."""
        try:
            folder, state = folder_of(self._options), state_of(self._options)
            facts = layout.read(folder.path)
            fingerprint = health.fingerprint(folder.path, facts)
            if fingerprint == self._known_good:
                return list(health.state_faults(state))
            found = health.faults(folder.path, folder.shown, facts, state)
        except CniError as fault:
            return [fault.msg]
        except OSError as fault:
            return [f"{fault.filename}: {fault.strerror}"]
        self._known_good = () if found else fingerprint
        return found
