"""Which leases the collector frees: those that an audit calls dead, twice, a grace apart, and that no pod can be using. Pure.

The collector takes only those findings of `railcni ipam audit` that the pod's object decides: the pod is gone, is another of
the same name, or has ended. A network-status alone decides nothing here: Multus writes it after the ADD.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from cni.library.audit import findings
from cni.library.audit.lease_rules import AuditRules
from cni.library.audit.model import Key, Name, Pod, Snapshot
from ipam.leases import Lease

_DEAD = (findings.LEASE_WITHOUT_POD, findings.LEASE_OF_ENDED_POD, findings.LEASE_OF_ANOTHER_UID)


def find_dead(leases: Collection[Lease], pods: Mapping[Name, Pod]) -> dict[Key, str]:
    """The dead ones of `leases`, each with the reason; `pods` hold those of their names that exist."""
    rules = AuditRules(Snapshot("", leases, pods=pods))
    found = ((one.identity, rules.lease(one)) for one in leases)
    return {key: f.message for key, f in found if f and f.action == findings.RECLAIM and f.kind in _DEAD}


class GraceTracker:
    """Leases that each reading since the first has found dead, and its time; in memory alone, so a new agent begins again."""

    def __init__(self) -> None:
        self.leases: dict[Key, Lease] = {}
        self._first: dict[Key, float] = {}

    def saw(self, dead: Mapping[Key, Lease], now: float, grace: float) -> list[Key]:
        """Those of `dead` that the first reading found at least `grace` seconds ago."""
        self.leases = dict(dead)
        self._first = {key: self._first.get(key, now) for key in dead}
        return [key for key, first in self._first.items() if now - first >= grace]
