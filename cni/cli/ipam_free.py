"""Freeing one address that was found dead: everything is read again right before, and tested by the change itself."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any, Protocol

from cni.attachment import STATE, Book
from cni.cli import judge_node
from cni.cli.at_work import excluded
from cni.cli.findings import RECLAIM, Finding
from cni.cli.inventory import Held, Pod, Reserved, lease_of, of_lease
from cni.cli.ipam_look import Look, record_of
from cni.cli.judge import Judge
from cni.cli.objects import parse_pool, parse_reservation
from cni.cli.store import Choice
from cni.spec.request import Attachment
from ipam import records
from ipam.ranges import parse_address
from ipam.records import PART
from ipam.stores.base import CHANGE, SHARED_SECONDS, Want
from ipam.stores.kubernetes_api import POOLS, RESERVATIONS, Api, Conflict, Gone

_ATTEMPTS = 8


class Changed(Exception):
    """It is no longer as it was found; the text says how."""


class Freeing(Protocol):
    """Frees what was found dead in one kind of store."""

    def free(self, finding: Finding, dry_run: bool) -> None:
        """Free it; Changed when it must not be freed, CniError when it cannot be."""

    def close(self) -> None: ...


def freeing(choice: Choice, seen: Look) -> Freeing:
    """What frees the findings of the look `seen` at the chosen store."""
    if choice.kind == "kubernetes":
        return _OfCluster(choice, seen)
    return _OfFile(choice, seen) if choice.kind == "file" else _OfEtcd(choice, seen)


class _WithPods:
    """Reads pods again, one at a time."""

    def __init__(self, choice: Choice, seen: Look) -> None:
        from cni.cli.cluster import Cluster

        if seen.inventory is None or seen.inventory.pods is None:
            raise Changed("the pods cannot be read")
        self._inventory = seen.inventory
        self._default = choice.cooldown
        self._pods: dict[tuple[str, str], Pod] = dict(seen.inventory.pods)
        self._cluster = Cluster(choice.kubeconfig, choice.namespace)

    def close(self) -> None:
        self._cluster.close()

    def _cooldown(self, held: Held) -> int:
        """For how many seconds a freed address is given to no other pod: as its networks say, or the flat file."""
        own = [
            n.cooldown
            for n in self._inventory.networks
            if n.holds(held.address) and (n.sliced or held.pool in n.pools())
        ]
        return max(own, default=0) or self._default

    def _judge(self, finding: Finding, **parts: Any) -> Judge:
        """A judge that knows the finding's pod and node as they are now."""
        namespace, _, name = finding.pod.partition("/")
        pod = self._cluster.pod(namespace, name)
        self._pods.pop((namespace, name), None)
        if pod:
            self._pods[namespace, name] = pod
        nodes = dict(self._inventory.nodes or {})
        if finding.node and self._inventory.nodes is not None:
            node = self._cluster.node(finding.node)
            nodes.pop(finding.node, None)
            if node:
                nodes[finding.node] = node
        known = None if self._inventory.nodes is None else nodes
        return Judge(replace(self._inventory, pods=self._pods, nodes=known, **parts))

    @staticmethod
    def _agree(finding: Finding, again: Finding | None) -> None:
        if again is None:
            raise Changed("it is in use")
        if again.action != RECLAIM:
            raise Changed(again.message)
        if again.key() != finding.key():
            raise Changed(f"it is another finding now: {again.message}")


class _OfCluster(_WithPods):
    """An allocation goes by a patch that tests the pool's resourceVersion; the reservation after it, by its own.

    The reservation is deleted as it was read before the allocation went: an ADD that has taken the address since has
    changed it in place.
    """

    def __init__(self, choice: Choice, seen: Look) -> None:
        super().__init__(choice, seen)
        self._api = Api(choice.kubeconfig, SHARED_SECONDS)
        self._api.access.namespace = self._cluster.namespace

    def close(self) -> None:
        super().close()
        self._api.close()

    def free(self, finding: Finding, dry_run: bool) -> None:
        reserved = self._free_lease(finding, dry_run) if finding.pool else self._lone(finding)
        name, uid = finding.reservation
        if not (name and reserved) or dry_run:
            return
        try:
            self._api.delete(RESERVATIONS, name, uid, reserved[0].version)
        except (Conflict, Gone):
            if not finding.pool:
                raise Changed("another has taken its place") from None

    def _free_lease(self, finding: Finding, dry_run: bool) -> list[Reserved]:
        """Free the allocation; the reservation that went with it."""
        for _ in range(_ATTEMPTS):
            document = self._cluster.pool(finding.pool)
            if document is None:
                raise Changed(f"pool {finding.pool} is gone")
            reserved = self._reserved(finding)
            state = parse_pool(document, reserved, self._inventory.networks)
            held = next((h for h in state.held if h.text == finding.address), None)
            if held is None or dict(held.entry) != dict(finding.entry):
                raise Changed("the allocation is gone" if held is None else f"it is {held.owner}'s now")
            self._agree(finding, self._judge(finding, reserved=reserved).lease(held))
            if dry_run:
                return reserved
            cooled = state.pool.cooled([lease_of(held)], self._cooldown(held), int(time.time()))
            try:
                self._api.patch(POOLS, finding.pool, state.pool.patch({held.address[1]: None}, cooled))
                return reserved
            except (Conflict, Gone):
                continue  # the pool has changed since it was read: look again
        raise Changed(f"pool {finding.pool} changed each time that it was to be: try again later")

    def _reserved(self, finding: Finding) -> list[Reserved]:
        """The reservation that goes with the finding, as it is now."""
        name, _ = finding.reservation
        document = self._cluster.reservation(name) if name else None
        scopes = {"", *(n.network_name for n in self._inventory.networks)}
        scopes |= {s.scope for s in self._inventory.pools if s.scope}
        return [parse_reservation(document, scopes)] if document else []

    def _lone(self, finding: Finding) -> list[Reserved]:
        """The reservation of the finding, which no lease goes with."""
        reserved = self._reserved(finding)
        if not reserved:
            raise Changed("the reservation is gone")
        self._agree(finding, self._judge(finding).reservation(reserved[0]))
        return reserved


class _OfEtcd(_WithPods):
    """A lease goes by a transaction that tests all that makes it this lease."""

    def __init__(self, choice: Choice, seen: Look) -> None:
        super().__init__(choice, seen)
        self._store = choice.open(CHANGE)

    def free(self, finding: Finding, dry_run: bool) -> None:
        lease = self._store.holder(Want(finding.pool, *parse_address(finding.address), None))
        held = of_lease(lease) if lease else None
        if lease is None or held is None or not _is_same(held, finding):
            raise Changed("the lease is gone" if held is None else f"it is {held.owner}'s now")
        self._agree(finding, self._judge(finding).lease(held))
        self._store.cooldown = self._cooldown(held)
        if not dry_run and not self._store.release([lease]):
            raise Changed("the lease is gone")


class _OfFile:
    """All leases of an attachment go at once, under its locks, so that no ADD or DEL of it is under way."""

    def __init__(self, choice: Choice, seen: Look) -> None:
        if seen.node is None:
            raise Changed("the node's records cannot be read")
        self._choice = choice
        self._node = seen.node
        self._store = choice.open(CHANGE)
        self._book = Book(STATE)

    def close(self) -> None:
        """Nothing is kept open."""

    def free(self, finding: Finding, dry_run: bool) -> None:
        attachment = Attachment(finding.network, finding.container_id, finding.ifname)
        with excluded(self._book, attachment) as users:
            if users is None:
                raise Changed("an operation on its attachment is under way")
            self._free(attachment, finding, dry_run)

    def _free(self, attachment: Attachment, finding: Finding, dry_run: bool) -> None:
        with self._store.turn():
            leases = self._store.find(attachment)
            helds = [of_lease(lease) for lease in leases]
            if not any(_is_same(held, finding) for held in helds):
                raise Changed("the lease is gone")
            record = record_of(attachment, self._choice)
            for held in helds:
                again = judge_node.of_lease(self._node, held, record)
                if again is None or again.kind != finding.kind:
                    raise Changed(again.message if again else "its namespace is there again")
            if dry_run:
                return
            self._store.cooldown = records.cooldown(dict(record or {})) or self._choice.cooldown
            self._store.release(leases)
        if record:
            self._book.remove(attachment, PART)


def _is_same(held: Held, finding: Finding) -> bool:
    """Whether a lease is the one that was found, sequence and all."""
    return (held.pool, held.text, held.network, held.container_id, held.ifname, held.sequence) == (
        finding.pool,
        finding.address,
        finding.network,
        finding.container_id,
        finding.ifname,
        finding.sequence,
    )
