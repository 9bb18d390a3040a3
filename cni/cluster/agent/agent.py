"""The agent's tasks, made from the options of `railcni agent`."""

from __future__ import annotations

import argparse
import os
import time
import uuid
from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Any

from cni import VERSION
from cni.cluster.agent import loop, nodefiles
from cni.cluster.agent.collector import Collector
from cni.cluster.agent.loop import SECONDS, Ended, Task
from cni.cluster.audit import silence
from cni.cluster.audit import store as chosen
from cni.cluster.audit.cluster import CHOICE, Cluster
from cni.cluster.audit.silence import Election
from cni.link.verbs import gc
from cni.node.installation import layout
from cni.node.installation.files import below
from cni.node.installation.options import DEFAULT, folder_of, state_of
from cni.node.inventory import counters
from cni.node.runtime import PLUGIN_DIRECTORIES
from cni.node.service.endpoint import HttpEndpoint, readiness
from cni.node.service.log import AgentLog
from cni.node.service.metrics import Metrics
from cni.shared.kernel import files
from cni.shared.kernel.node import host_name
from cni.shared.records import Records
from cni.shared.spec.errors import CniError, InvalidConfig, TryAgainLater
from ipam import source, stores, upkeep
from ipam.stores.apiserver import Api
from ipam.stores.apiserver.faults import Conflict, Unauthorized
from ipam.stores.apiserver.kubeconfig import service_url
from ipam.stores.apiserver.resources import POOLS

_FLUSH_SECONDS = 2.0  # the time limit for the releases of one step
_FLUSH_EVERY, _FLUSH_LONGEST = 10.0, 300.0  # seconds between two runs; the longest pause after repeated failures
_REFRESH_EVERY = 1.0  # seconds: a token rotates hours before it expires, but the CA may be replaced at any time
_RESIGN_SECONDS = 0.4


class Health:
    """The health of the installation in the folders that `options` name, for the kubelet's probes.

    Each probe reads the metadata of the installed files, and executes the plugins only if their files have changed
    since the last probe without a fault. So most probes cost only some system calls.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._known_good: tuple[object, ...] = ()  # the fingerprint of plugins that have run without fault

    def faults(self) -> list[str]:
        try:
            folder, state = folder_of(self._options), state_of(self._options)
            facts = layout.read(folder.path)
            fingerprint = layout.fingerprint(folder.path, facts)
            if fingerprint == self._known_good:
                return list(layout.state_faults(state))
            found = layout.faults(folder.path, folder.shown, facts, state)
        except CniError as fault:
            return [fault.msg]
        except OSError as fault:
            return [f"{fault.filename or 'the working directory'}: {fault.strerror}"]
        self._known_good = () if found else fingerprint
        return found


class Agent:
    """The agent's tasks and their common state. `options` are the options of `railcni agent`."""

    def __init__(self, options: argparse.Namespace, log: AgentLog) -> None:
        self._options = options
        self._log = log
        self.metrics = Metrics()
        Api.observe = staticmethod(self._observe)
        self.health = Health(options)
        self.node = options.node or host_name()
        self._folder_shown = os.path.join(os.path.abspath(options.conf_dir), nodefiles.FOLDER)
        self._server: Cluster | None = None
        self._state = state_of(options)
        self._records = Records(self._state, log)
        self._tokens = nodefiles.Tokens(options.plugin_account or "", self.node)
        self._has_account = False
        self._has_written = False
        self._authority = b""
        self.election = Election(f"{self.node}_{uuid.uuid4()}", options.lease_seconds)
        of_node = self._records, self._below, self._cooldown, self.node
        self.collector = Collector(self.server, *of_node, self.election, options.grace, self.metrics, log)
        self._flushed = False
        self._compared = ""

    def tasks(self) -> list[Task]:
        """The tasks that `options` enable, each after the tasks whose results it uses."""
        options = self._options
        tasks = [Task("files", _REFRESH_EVERY, self.refresh)] if not options.kubeconfig else []
        if tasks and options.plugin_account:
            tasks.append(Task("plugins' token", options.every or options.grace / 2, self.probe_token))
        tasks.append(Task("flush", _FLUSH_EVERY, self.flush, _FLUSH_LONGEST))
        if not options.once:
            tasks.append(Task("Lease of this node", 2 * options.lease_seconds, self.renew_lease))
        if not options.no_collect:
            self.metrics.last.set(time.time())  # without a sample, an alert could not see that no pass succeeds
            tasks.append(Task("election", options.lease_seconds / 3, self.elect))
            tasks.append(Task("collector", options.every or options.grace / 2, self.collector.steps))
        return tasks

    # --- the API server ---

    def server(self) -> Cluster:
        """The client of the API server, with the present credentials. Raises CniError without usable credentials."""
        if self._server is None:
            chosen.kubeconfig_of(self._options.kubeconfig)  # raises for a missing file, which may appear later
            self._server = Cluster(self._kubeconfig(), seconds=SECONDS)
        return self._server

    def _kubeconfig(self) -> str:
        if self._options.kubeconfig:
            return str(self._options.kubeconfig)
        own, written = f"{self._state}/{nodefiles.OWN}", f"{self._folder()}/{nodefiles.KUBECONFIG}"
        if self._has_account:
            return own
        if os.path.exists(written):
            return written
        message = f"there is no access to an API server: no token in {self._options.service_account}, and no {written}; name a kubeconfig with --kubeconfig"
        raise InvalidConfig(message)

    def _datastore(self, wanted: str) -> str:
        """Return the kind of store that the cluster has recorded. If no kind is recorded, first record the kind that
        has leases or, if both kinds or neither have leases, `wanted`."""
        cluster = self.server()
        if not (chosen := cluster.datastore()):
            used = cluster.used()
            chosen = cluster.choose(used[0] if len(used) == 1 else wanted)
        return chosen

    def _compare_datastore(self, named: str) -> None:
        """Record `named`, the flat file's store, for the cluster, or warn once if another store is recorded already."""
        if named not in stores.IN_CLUSTER or named == self._compared:
            return
        chosen = self.server().choose(named)
        self._compared = named
        if chosen != named:
            message = f'this file names the store "{named}", but the cluster\'s nodes use "{chosen}" (ConfigMap {CHOICE}): write "datastore": "{chosen}" here, or move the leases by `railcni ipam migrate`'
            self._log.say("warning", message, file=f"{self._folder_shown}/{nodefiles.FLAT_FILE}")

    def _observe(self, verb: str, resource: str, seconds: float, fault: BaseException | None) -> None:
        """Count a request to the API server in the metrics, with its duration `seconds` and its `fault`, if any."""
        place = resource.split("/")
        kind = f"{place[0]}/{place[-1]}" if len(place) > 1 else resource
        self.metrics.durations.observe(seconds, verb, kind)
        if isinstance(fault, Conflict):
            self.metrics.conflicts.add(1, kind)
        elif isinstance(fault, CniError):
            self.metrics.failures.add(1, verb, kind)

    def resign(self) -> None:
        """If this agent is elected, give up the election's Lease. If the request fails, the Lease expires later."""
        if self._server and self.election.is_elected():
            with suppress(CniError):  # the Lease expires
                self.election.resign(Api(self._server.path, _RESIGN_SECONDS))

    # --- tasks ---

    def refresh(self) -> Iterator[None]:
        """Write the plugins' files (kubeconfig, flat file, node name), each only if its content must change."""
        folder, options = self._folder(), self._options
        server = options.api_server or service_url(os.environb)
        token = nodefiles.service_account_token(options.service_account)
        if not token:
            return
        if not server:
            raise InvalidConfig(
                "KUBERNETES_SERVICE_HOST is not set, so the API server's address is not known: name it with --api-server"
            )
        authority = nodefiles.read(f"{options.service_account}/ca.crt") or b""
        self._use(server, authority)
        token = self._tokens.current(token, lambda: self.server().api)
        why = self._tokens.unbound
        self._log.state("token's node", why and f"the plugins' token is not bound to Node {self.node}: {why}")
        self._put_kubeconfig(folder, nodefiles.kubeconfig(server, token, authority, options.namespace))
        if options.node:
            self._put(folder, nodefiles.NODE_NAME, options.node.encode())
        yield
        present = nodefiles.read(f"{folder}/{nodefiles.FLAT_FILE}")
        data = nodefiles.flat_file(present, self._folder_shown, options.datastore, self._datastore)
        self._put(folder, nodefiles.FLAT_FILE, data)
        shown = f"{self._folder_shown}/{nodefiles.FLAT_FILE}"
        if shown not in source.PATHS:
            message = f"no plugin looks there, but for {' or '.join(source.PATHS[:2])}: see --conf-dir"
            self._log.state("flat file's folder", message, file=shown)
        self._compare_datastore(nodefiles.datastore(data))

    def probe_token(self) -> Iterator[None]:
        """Test the plugins' token. If the server refuses the token, make `refresh` request a new token at once."""
        if not self._has_written:
            return
        yield
        path = f"{self._folder()}/{nodefiles.KUBECONFIG}"
        with closing(Api(path, SECONDS)) as api, suppress(CniError):  # other tasks report other faults of the server
            try:
                api.get(POOLS, "railcni-status")
            except Unauthorized as fault:
                self._tokens.forget()
                account = self._options.plugin_account
                self._log.say("warning", f"the token of {account} is refused; another is requested: {fault.msg}")

    def _use(self, server: str, authority: bytes) -> None:
        """Use the service account's files for API requests. Connect again if the server's address or CA has changed."""
        files.make_private_directory(self._state)
        data = nodefiles.own_kubeconfig(server, self._options.service_account, self._options.namespace)
        changed = nodefiles.put(self._state, nodefiles.OWN, data)
        if changed or not self._has_account or authority != self._authority:
            self._has_account, self._authority = True, authority
            if self._server:
                self._server.api.close()
                self._server = None

    def _put_kubeconfig(self, folder: str, data: bytes) -> None:
        found = nodefiles.read(f"{folder}/{nodefiles.KUBECONFIG}") if self._has_written else None
        if found is not None and not nodefiles.is_own(found):
            message = "another program also writes this file, and its token is overwritten: remove whereabouts' DaemonSet, or end this agent"
            self._log.say("warning", message, file=f"{self._folder_shown}/{nodefiles.KUBECONFIG}")
        self._put(folder, nodefiles.KUBECONFIG, data)
        self._has_written = True

    def _put(self, folder: str, name: str, data: bytes) -> None:
        if nodefiles.put(folder, name, data):
            self.metrics.written.add(1, name)
            self._log.say("info", "written", file=f"{self._folder_shown}/{name}")

    def flush(self) -> Iterator[None]:
        """Retry pending releases of addresses, and remove attachments whose DEL failed or never came.

        Raises TryAgainLater if a release or an attachment remains. An agent in a container retries only releases: it
        sees neither the host's links nor the processes and mounts that keep a network namespace. With such an agent,
        the next call of a plugin on the node removes the attachments.
        """
        ends_too = self._options.root == "/"
        if not self._flushed or self._records.is_reminded(0) or (ends_too and self._records.is_look_due()):
            left = upkeep.flush(self._records, self._store(), _FLUSH_SECONDS)
            if ends_too:
                environ = {"CNI_PATH": ":".join((self._options.plugin_dir or DEFAULT, PLUGIN_DIRECTORIES[0]))}
                left += gc.finish_unended(self._records, environ, _FLUSH_SECONDS)
            self.metrics.pending.set(left)
            self._flushed = not left
            yield
            if left:
                raise TryAgainLater(f"{left} releases of this node are still to be made")

    def renew_lease(self) -> Iterator[None]:
        """Renew the Lease that shows the other agents that this agent is alive."""
        if self._has_account or not self._options.no_collect:
            silence.renew(self.server().api, self.node, 6 * self._options.lease_seconds)
        yield

    def elect(self) -> Iterator[None]:
        """Renew the election's Lease, or try to take it. Log a message when this agent gets or loses the Lease."""
        former = self.election.is_elected()
        try:
            yield
            self.election.renew(self.server().api)
        finally:
            elected = self.election.is_elected()
            if elected != former:
                now = "elected" if elected else "no longer elected"
                self._log.say(
                    "info", f"{now} to free the leases of nodes without an agent", holder=self.election.holder
                )

    # --- paths ---

    def _below(self, path: str) -> str:
        return below(self._options.root, path) if self._options.root != "/" else path

    def _folder(self) -> str:
        return self._below(self._folder_shown)

    def _flat_file(self) -> chosen.Choice | None:
        """The store that the flat file (whereabouts.conf) names; None without a usable flat file."""
        paths = (f"{self._folder_shown}/{nodefiles.FLAT_FILE}", *source.PATHS)
        found = next((mounted for mounted in map(self._below, paths) if os.path.exists(mounted)), "")
        try:
            return chosen.of_flat_file(found) if found else None
        except CniError as fault:
            self._log.state("flat file", fault.msg)
            return None

    def _cooldown(self) -> int:
        choice = self._flat_file()
        return choice.cooldown if choice else 0

    def _store(self) -> dict[str, Any] | None:
        """A reference to the flat file's store, with file paths of this container; None if nodes do not share it."""
        choice = self._flat_file()
        if choice is None or not choice.is_shared:
            return None
        store_ref = choice.store_ref
        for key in stores.FILES:
            if store_ref.get(key):
                store_ref[key] = self._below(store_ref[key])
        if store_ref["kind"] in stores.IN_CLUSTER:
            if store_ref["kind"] == "kubernetes":
                store_ref["pools"] = []  # a record adds its own pools
            if self._has_account or self._options.kubeconfig:
                store_ref["kubeconfig"] = self._kubeconfig()
        return store_ref

    # --- pages ---

    def health_page(self) -> tuple[int, str, str]:
        """Return the HTTP status, the content type and the text of the page /healthz."""
        return readiness(self.health.faults(), [])

    def metrics_page(self) -> tuple[int, str, str]:
        """Return the HTTP status, the content type and the text of the page /metrics."""
        self.metrics.healthy.set(not self.health.faults())
        self.metrics.leader.set(self.election.is_elected())
        sys = self._below("/sys")
        self.metrics.errors.replace(counters.samples(sys))
        rates, firmware = counters.siblings(sys)
        self.metrics.rates.replace(rates)
        self.metrics.firmware.replace(firmware)
        return self.metrics.page()


def run(options: argparse.Namespace) -> int:
    """Run the agent until a signal ends it or, with --once, until all tasks are done. Returns the exit code."""
    log = AgentLog(options.log_level)
    loop.end_on_signals()
    agent = Agent(options, log)
    pages = {"/healthz": agent.health_page, "/readyz": agent.health_page, "/metrics": agent.metrics_page}
    try:
        if not options.once:
            with closing(HttpEndpoint(options.listen, pages)) as endpoint:
                log.say("info", "railcni agent serves", version=VERSION, node=agent.node, url=f"{endpoint.url}/healthz")
                _say_health(agent, log)
                loop.run(agent.tasks(), log)
        _say_health(agent, log)
        well = [loop.run_once(task, log) for task in agent.tasks()]
        if agent.collector.suspects:  # leases that were found dead
            time.sleep(options.grace)
            well += [loop.run_once(task, log) for task in agent.tasks() if task.name in ("election", "collector")]
        agent.resign()
        return 0 if all(well) else 1
    except Ended:
        agent.resign()
        log.say("info", "ended by a signal")
        return 0


def _say_health(agent: Agent, log: AgentLog) -> None:
    faults = agent.health.faults()
    log.say("warning" if faults else "info", "; ".join(faults) or "the installation is whole")
