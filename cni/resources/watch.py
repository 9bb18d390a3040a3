"""Watch the configuration and the devices of a node, for a program that offers the devices while it runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from time import monotonic

from cni.documents.diagnostic import ERROR
from cni.node.service.log import AgentLog
from cni.resources.choose import Host, Resource, resources
from cni.resources.config import Config
from cni.resources.node import config_state, host_state, read_config, read_host
from cni.shared.spec.errors import InvalidConfig

_SETTLE_SECONDS = 3.0  # from a change to a second reading: a port's GIDs appear some time after its state


class Watch:
    """The configuration in `paths`, and the node below `root`. Raises InvalidConfig if a file is unreadable."""

    def __init__(self, paths: Sequence[str], root: str, log: AgentLog) -> None:
        self._paths = paths
        self._root = root
        self._log = log
        self.host = Host()
        self.resources: list[Resource] = []
        self._host_state: tuple[object, ...] = ()
        self._config_state = config_state(paths)
        self.config = read_config(paths)
        self._due = 0.0  # the time of the next full reading
        if not self.config.is_whole:
            raise InvalidConfig(self.faults[0], "\n".join(self.faults[1:]))
        self._read(self.config)

    @property
    def faults(self) -> list[str]:
        """A sentence for each fault of the configuration, and for each resource without a matching device."""
        faults = [finding.sentence for finding in self.config.findings if finding.severity == ERROR]
        return faults + [f"{one.name}: {one.unchosen}" for one in self.resources if one.unchosen]

    @property
    def limits(self) -> list[str]:
        """A sentence for each resource with fewer devices than the configuration asks for."""
        return [f"{one.name}: {one.limit}" for one in self.resources if one.limit]

    def look(self) -> bool:
        """If the configuration, a device or a port has changed, or the period is over, read the resources again and log
        their faults. Return True if they were read."""
        state = config_state(self._paths)
        if state != self._config_state:
            self._config_state, self._due = state, 0.0
            self._read(read_config(self._paths))
        state = host_state(self.host, self._root)
        if state == self._host_state and monotonic() < self._due:
            return False
        self.host = read_host(self._root, self.host)
        period = self.config.period or math.inf
        self._due = monotonic() + (period if state == self._host_state else min(period, _SETTLE_SECONDS))
        self._host_state = state
        self.resources = resources(self.config.resources, self.host)
        for resource in self.resources:
            self._say(resource)
        return True

    def _say(self, resource: Resource) -> None:
        withheld = "; ".join(f"{name} is {reason}" for name, reason in resource.withheld.items())
        self._log.state(f"{resource.name} withheld", withheld, resource=resource.name)
        faults = "; ".join(offer.fault for offer in resource.offers if offer.fault)
        self._log.state(f"{resource.name} devices", faults or resource.unchosen, resource=resource.name)
        self._log.state(f"{resource.name} limit", resource.limit, resource=resource.name)

    def _read(self, config: Config) -> None:
        """Log the findings of `config`. If all files could be read, use `config` from now on."""
        for finding in config.findings:
            level = "error" if finding.severity == ERROR else "warning"
            self._log.say(level, finding.message, place=finding.place, key=finding.key, fix=finding.fix)
        if config.is_whole:
            if config.policies != self.config.policies:
                remedy = "restart the device plugin, or run `railcni vfs apply`, to make them"
                self._log.say("warning", f"the configuration asks for other virtual functions: {remedy}")
            self.config = config
            self._log.say("info", "the configuration was read", resources=len(config.resources))
        else:
            self.config.findings = config.findings
            self._log.say("error", "the configuration cannot be read: the former one stays in use")
