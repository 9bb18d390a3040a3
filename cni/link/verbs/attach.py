"""ADD of a link plugin: remove all that a killed ADD has left, then make the whole attachment or nothing."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from cni.link import plugins
from cni.link.plugins import whereabouts
from cni.link.verbs import delegate
from cni.shared.config import OF_FEATURES, OF_RUNTIMES, Fault, misspelt
from cni.shared.kernel import ipconfig
from cni.shared.kernel import sandbox as sandboxes
from cni.shared.kernel.links import Link, Rtnl
from cni.shared.kernel.netlink import KernelError
from cni.shared.records import LINK, Records
from cni.shared.spec import errors
from cni.shared.spec.request import Request, at_least
from cni.shared.spec.result import IPV6_LEAST_MTU, Interface, Result

if TYPE_CHECKING:
    from cni.link.features import Asked, Planned
    from cni.link.plugins.base import LinkPlugin
    from cni.link.plugins.common import Facts
    from cni.shared.kernel.sandbox import Sandbox
    from cni.shared.log import Log

_VERBS_DEVICES = "/sys/class/infiniband"  # the directory exists when the kernel has RDMA


def add(plugin: LinkPlugin, request: Request, records: Records) -> Result:
    """Make the attachment. Returns the result of the whole chain. A failure undoes the completed steps."""
    log = records.log
    config, asked = _read(plugin, request, log)
    earlier = _earlier(request)
    with sandboxes.opened(request) as sandbox, records.locked(request.attachment, LINK), Rtnl() as host:
        attempt = _Attempt(plugin, config, request, sandbox, host, records)
        attempt.clear_predecessor()
        with plugin.survey(config, request, host, sandbox.rtnl, records, plugins.of_made) as facts:
            attempt.plan(asked, facts)
            attempt.write_record()
        try:
            if attempt.is_foreign:
                attempt.make_link()
                attempt.set_up()
                attempt.claim()
            else:
                attempt.claim()
                attempt.make_link()
            result = attempt.configure()
        except BaseException as fault:
            attempt.undo(fault)
            if isinstance(fault, errors.AddressInUse) and not attempt.is_foreign:
                whereabouts.found_in_use(fault.addresses, records)
            raise
    return _appended(earlier, result) if earlier else result


def _read(plugin: LinkPlugin, request: Request, log: Log) -> tuple[Any, Asked | None]:
    """The checked configuration of the link, and the checked configurations of the features by name.

    Raises InvalidConfig with all faults of these keys and, if the IPAM plugin is ours, the faults of `ipam`."""
    faults: list[Fault] = []
    config = plugin.read(request, faults)
    asked = _features(request, faults, log)
    delegate.refuse(faults, request)
    names = [*[key.name for key in plugin.KEYS], *OF_RUNTIMES, *OF_FEATURES]
    for text in misspelt(request.config, names):
        log.warning(text)
    has_addresses = request.ipam_type != ""
    if request.member("ipam") and not has_addresses:
        log.warning('`ipam` has no `type`, and the link gets no addresses: want "type": "whereabouts" in it')
    if not has_addresses and not at_least(request.cni_version, "0.3.0"):
        raise errors.IncompatibleVersion(
            f"cniVersion {request.cni_version} cannot describe an attachment without addresses: use cniVersion 0.3.0 or newer,"
            " or give the network an ipam block"
        )
    return config, asked


def _features(request: Request, faults: list[Fault], log: Log) -> Asked | None:
    """The checked configuration of each feature that may apply. If no feature may, return None, and load no module."""
    rdma = request.member("rdma")
    if (rdma is False or (rdma is None and not os.path.exists(_VERBS_DEVICES))) and request.member("rail") is None:
        return None
    from cni.link import features  # most networks have none

    asked = features.read(request, faults)
    for name in asked:
        members = request.member(name)
        names = [key.name for key in features.named(name).KEYS]
        for text in misspelt(members if isinstance(members, dict) else {}, names, f"{name}."):
            log.warning(text)
    rail = asked.get("rail")
    if rail and rail.is_same_index and (not request.ipam_type or delegate.is_foreign(request)):
        wanted = "needs the IPAM plugin whereabouts of this suite: want it as ipam.type, in CNI_PATH before any other"
        faults.append(Fault("rail.addressing", rail.addressing, wanted))
    return asked


def _earlier(request: Request) -> Result | None:
    """The result of the earlier plugins of the chain (prevResult, since 0.3.0); None for the first plugin.

    Raises InvalidEnvironment when an earlier plugin has made the interface CNI_IFNAME (SPEC.md, section 4, ADD). A
    record or link of this attachment then belongs to that plugin, so this ADD must not remove it.
    """
    document = request.member("prevResult")
    if document is None or not at_least(request.cni_version, "0.3.0"):
        return None
    from cni.shared.spec.parsing import parse  # most networks have one plugin

    earlier = parse(document)
    name = request.attachment.ifname
    if any(made.name == name and made.sandbox == request.netns for made in earlier.interfaces):
        raise errors.InvalidEnvironment(
            f'CNI_IFNAME "{name}" exists already in the sandbox {request.netns}: an earlier plugin of the chain made it. Only'
            " one plugin of a list `plugins` can make the interface: give each a network of its own"
        )
    return earlier


def _appended(earlier: Result, own: Result) -> Result:
    """The result of the chain: `earlier` with `own` (SPEC.md, section 5, Success). Go's macvlan drops `earlier`."""
    for address in own.ips:
        address.interface = len(earlier.interfaces)
    interfaces = earlier.interfaces + own.interfaces
    return Result(interfaces, earlier.ips + own.ips, earlier.routes + own.routes, own.dns or earlier.dns)


class _Attempt:
    """The steps of an ADD. `add` calls the methods roughly in this order, and `undo` after a failure.

    `is_foreign` is true for an IPAM plugin of another suite. Such a plugin is called when the link is up, since dhcp
    needs the link. Our plugin is called before the link is made, so that an ADD without a free address makes no link.
    """

    def __init__(
        self, plugin: LinkPlugin, config: Any, request: Request, sandbox: Sandbox, host: Rtnl, records: Records
    ) -> None:
        self._plugin = plugin
        self._config = config
        self._request = request
        self._sandbox = sandbox
        self._records = records
        self._log = records.log
        self.host = host
        self._ipam = request.ipam_type
        self.is_foreign = delegate.is_foreign(request)
        self._planned: Any = None
        self._features: Planned = ()
        self._record: dict[str, Any] = {}
        self._addresses = Result()
        self._link: Link | None = None
        self._claimed = self._applied = False

    def clear_predecessor(self) -> None:
        """Remove the link that an earlier ADD of this attachment made. That ADD was killed, or its result did not reach
        the runtime. The addresses stay leased if our IPAM plugin will give the same addresses again."""
        former = self._records.read(self._request.attachment, LINK)
        if former:
            from cni.link.verbs import detach  # most ADDs are the first of their attachment

            release = detach.Release(former, self._request, self._records)
            until = time.monotonic() + detach.CLEARING_SECONDS
            errors.report(detach.detach(former, self._request, self.host, self._log, until, release))
            if release.ipam_type != self._ipam or self.is_foreign:
                release.finish()

    def plan(self, asked: Asked | None, facts: Facts) -> None:
        """Plan the link from the `facts` of the survey, and the features from their configurations `asked`."""
        plugin = self._plugin
        self._planned = plugin.plan(self._config, self._request, facts)
        name = self._planned.name
        taken = self._sandbox.rtnl.link(name=name)
        if taken and plugin.without_link(self._planned) is None:
            raise errors.InvalidEnvironment(
                f'CNI_IFNAME "{name}" exists already in the sandbox {self._request.netns} (a {taken.kind or "physical"} link that'
                " this attachment did not make): choose another ifname, or remove that link"
            )
        if asked:
            carrier = plugin.carrier(self._planned)
            self._features = asked.plan(self._request, carrier, plugin.SHARES_NETDEV, self._sandbox, self._log)

    def write_record(self) -> None:
        """Write the record, so that a DEL finds everything that the next steps make."""
        self._record = {
            "plugin": self._plugin.NAME,
            "netns": self._request.netns,
            "sandbox": self._sandbox.identity(),
            "pod": list(self._request.pod),
            "created": time.time_ns(),
            "config": self._request.stdin.decode(),
            "link": self._planned.document(),
        }
        if self._features:
            self._record["extras"] = {feature.KEY.name: document for feature, document in self._features}
        if self.is_foreign and self._ipam not in delegate.FORGETFUL:
            self._record["foreign"] = True  # the DEL of a foreign plugin needs the record (cni.shared.records)
        self._write()

    def _write(self) -> None:
        self._records.write(self._request.attachment, LINK, self._record)

    def claim(self) -> None:
        """Get the addresses from the IPAM plugin, if the network has one."""
        if not self._ipam:
            return
        self._claimed = True  # a failed call may have claimed addresses
        try:
            self._addresses = delegate.add(self._request, self._records)
        except errors.CniError:
            self._claimed = self.is_foreign or whereabouts.may_hold(self._request, self._records)
            raise
        mtu = self._planned.mtu  # 0: unknown
        for address in self._addresses.ips:
            if address.family == 6 and 0 < mtu < IPV6_LEAST_MTU:  # the kernel would only answer EINVAL
                raise errors.InvalidConfig(
                    f"mtu {mtu} is too small for the IPv6 address {address.address}: IPv6 needs {IPV6_LEAST_MTU} or more (RFC 8200)"
                )

    def make_link(self) -> None:
        """Make the link in the sandbox, or move it there."""
        self._applied = True
        self._link = self._plugin.apply(self._planned, self.host, self._sandbox.rtnl, self._sandbox.namespace)
        if self._record["link"] != self._planned.document():  # the kernel decides a part of the link's state
            self._record["link"] = self._planned.document()
            self._write()

    def set_up(self) -> None:
        """Set the link up without addresses, for a foreign IPAM plugin that uses the link (dhcp)."""
        link = self._link
        if link is None:
            return
        with self._sandbox.namespace.entered():
            self._prepare(link)
            self._set_up(link)
        link.up = True

    def _prepare(self, link: Link) -> None:
        for feature, document in self._features:
            feature.before_up(document, link, self._sandbox)

    def _set_up(self, link: Link) -> None:
        try:
            self._sandbox.rtnl.change_link(link.index, up=True)
        except KernelError as fault:
            raise errors.KernelRefused(self._plugin.refused_up(self._planned, fault), str(fault)) from None

    def configure(self) -> Result:
        """Set up the link with its addresses, routes and features. Returns this plugin's result of the ADD."""
        outside = self._plugin.without_link(self._planned) or ("", 0)
        interface = Interface(self._planned.name, *outside, self._request.netns, self._planned.pci)
        addresses = self._addresses
        for address in addresses.ips:
            address.interface = 0
        result = Result([interface], addresses.ips, addresses.routes, self._config.dns or addresses.dns)
        if self._link is None:  # a device without a link (DPDK)
            return result
        sandbox, link = self._sandbox, self._link
        with sandbox.namespace.entered():
            if not link.up:
                self._prepare(link)
            interface.mac, interface.mtu = ipconfig.configure(
                sandbox.rtnl, link, addresses, self._config.dad, lambda: self._set_up(link)
            )
            changed = [f.after_up(document, link, result, sandbox, self._log) for f, document in self._features]
        if any(changed):
            self._write()
        return result

    def undo(self, fault: BaseException) -> None:
        """Undo the steps that were begun before the error `fault`. If a step cannot be undone, the record stays for the
        next DEL, and the details of `fault` name the step."""
        from cni.link.verbs import detach  # most ADDs succeed

        sandbox = self._sandbox
        left = detach.remove_features(self._record, sandbox, self._log)
        release, made = detach.Release(None, self._request, self._records), plugins.of_made(self._plugin.NAME)
        try:
            if self._claimed:
                release.by_link(made, self._planned, sandbox)
            if self._applied:
                made.remove(self._planned, self.host, sandbox.rtnl, self._log)
            if self._claimed:
                try:
                    release.finish()
                except errors.CniError as second:
                    if str(second) != str(fault):  # the same error means that nothing was claimed
                        left.append(second)
            if not left:
                self._records.remove(self._request.attachment, LINK)
        except errors.CniError as second:
            left.append(second)
        if left and isinstance(fault, errors.CniError):
            undone = "; ".join(second.msg for second in left)
            fault.details = f"{fault.details}\nnot undone yet, DEL or GC will: {undone}".lstrip()
