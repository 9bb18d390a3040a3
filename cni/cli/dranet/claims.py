"""Frees the leases of ResourceClaims that are gone: DRANET asks for a release once, whatever comes of it.

Of this node's records those are looked at whose network is a profile, whose container is a UID and which name no pod.
Kubernetes keeps the object of a claim while a pod uses it. So a lease is freed when two looks, a grace apart, find no claim
of that UID.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import closing
from os import devnull
from typing import Any

from cni.library.audit.cluster import read_all
from cni.library.service.log import AgentLog
from cni.shared.records import STATE, Records
from cni.shared.spec.errors import CniError
from cni.shared.spec.request import Attachment
from ipam.records import PART
from ipam.stores.apiserver import Api
from ipam.stores.apiserver.faults import Forbidden
from ipam.stores.apiserver.resources import CLAIMS, EVERYWHERE

_SECONDS = 30.0  # for one request
_PAGE = 1000


class Claims:
    """`kubeconfig` names the cluster's, "" for none; `free` ends an attachment, if its network `is_profile`."""

    def __init__(
        self,
        kubeconfig: Callable[[], str],
        is_profile: Callable[[str], bool],
        free: Callable[[Attachment], object],
        log: AgentLog,
    ) -> None:
        self._kubeconfig = kubeconfig
        self._is_profile = is_profile
        self._free = free
        self._log = log
        self._gone: set[Attachment] = set()

    def look(self) -> None:
        """Free what the last look found without a claim too; what cannot be done is logged."""
        try:
            self._gone = self._look()
            self._log.state("claims", "")
        except CniError as fault:
            more = ": apply conf/examples/dranet-rbac.yaml" if isinstance(fault, Forbidden) else ""
            self._log.state("claims", f"leases of claims that are gone are not freed: {fault.msg}{more}")

    def _look(self) -> set[Attachment]:
        held = [a for a, _, record in Records(STATE, self._log).all(PART) if self._is_ours(a, record)]
        path = self._kubeconfig() if held else ""
        if not path:
            return set()
        with closing(Api(path, _SECONDS)) as api:  # after the records: a claim is there before its lease
            claims = read_all(lambda: api.pages(CLAIMS, brief=True, namespace=EVERYWHERE, size=_PAGE))
        uids = {claim["metadata"]["uid"] for claim in claims}
        gone = {attachment for attachment in held if attachment.container_id not in uids}
        for attachment in gone & self._gone:
            self._free(attachment)
            self._log.say("warning", f"freed {attachment}: its ResourceClaim is gone, and DRANET released nothing")
        return gone

    def _is_ours(self, attachment: Attachment, record: dict[str, Any]) -> bool:
        try:
            uuid.UUID(attachment.container_id)
        except ValueError:
            return False
        unnamed = record.get("netns") == devnull and not any(record.get("pod") or ())
        return unnamed and self._is_profile(attachment.network)
