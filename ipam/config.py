"""The IPAM configuration: the `ipam` block, the flat file and the caller's requested addresses as one checked object.

All faults are reported at once, each with its key as written: `ipam.ipRanges[1].exclude[0]`, `CNI_ARGS IP`, or
`PATH: gateway` for a key of the flat file at PATH. ipam.keys checks types, ranges, addresses and routes; this module
checks requests and combinations of keys. Sources: whereabouts v0.9 (pkg/config, pkg/types); CNI's CONVENTIONS.md.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from cni.shared import policy
from cni.shared.config import Fault, asks_for_same_index, attempt, refuse
from cni.shared.kernel import node
from cni.shared.spec import codec
from cni.shared.spec.errors import InvalidConfig
from cni.shared.spec.request import Request, at_least, member
from cni.shared.spec.result import IPConfig, Route
from ipam import keys
from ipam.leases import Owner
from ipam.ranges import BITS, Range, format_address, host_of, parse_address, parse_cidr
from ipam.source import OF_NODE, Files, Source

if TYPE_CHECKING:
    from typing import Any

    from cni.shared.log import Log
    from ipam.group.indexes import Group

    Requested = tuple[int, int, int | None]  # family, value, prefix length or None


class IpamConfig(keys.IpamKeys):
    """A checked IPAM configuration: an attribute for each key of IPAM_KEYS, and attributes made from several keys."""

    request: Request  # with the whole configuration, also the link plugin's keys
    ranges: list[Range]  # each gives an address; the block's own range first
    addresses: list[IPConfig]  # static addresses, which every attachment gets
    requested: list[Requested]  # from CNI_ARGS IP, runtimeConfig.ips, args.cni.ips: for this attachment alone
    outside: list[Range]  # the last of `ranges`: one for each requested address outside of the network's ranges
    gateways: list[tuple[int, int]]  # (family, value) of CNI_ARGS GATEWAY
    kept_back: list[tuple[int, int]]  # (family, value): gateways, next hops and static addresses, which no range gives
    routes: list[Route]
    dns: dict[str, Any]  # the object of the CNI spec; {} when no key of DNS is given
    node: str  # this node's name
    slice_node: str  # the node whose slices are in `ranges`; "" for whole ranges (ipam.stores.ippool.slices)
    config_path: str  # the flat file that was read, or ""
    hidden: list[str]  # values of a flat file that the network chose: no error may show them
    borrowed: str = ""  # the reason why the network may not name this store; "" if it may
    unnamed: Fault | None  # the fault for a Kubernetes pod if no store is named; else None
    notes: list[str]  # for the log: the keys that have no effect

    def range_of(self, family: int, value: int) -> Range | None:
        """The first range whose CIDR contains the address; None if there is none."""
        return next((r for r in self.ranges if r.family == family and r.contains(value)), None)

    def gateway_of(self, address: str, own: str = "") -> str:
        """The gateway for `address`, which is written "address/length"; "" if there is none.

        A gateway of CNI_ARGS in the subnet comes first, then `own`, the gateway configured for this address alone, then
        the key `gateway`, if its family is that of `address`.
        """
        if not (self.gateways or self.gateway):
            return own
        subnet = Range(*parse_cidr(address))
        for family, value in self.gateways:
            if family == subnet.family and subnet.contains(value):
                return format_address(family, value)
        return own or (self.gateway if self.gateway and _family(self.gateway) == subnet.family else "")


def read(request: Request, files: Files = OF_NODE) -> IpamConfig:
    """The IPAM configuration of `request`.

    Raises InvalidConfig with all faults if there are any, IoFailure for an unreadable flat file. For a Kubernetes pod,
    ADD and CHECK refuse a configuration without a store. Other verbs accept it, since they may have to clean up.
    """
    faults: list[Fault] = []
    config = examine(request, faults, files)
    refuse(faults)
    return config


def examine(request: Request, faults: list[Fault], files: Files = OF_NODE) -> IpamConfig:
    """As `read`, but return a faulty configuration too. Its faults are appended to `faults`."""
    block = request.member("ipam")
    if not isinstance(block, dict):
        fault = "has no `ipam`" if block is None else "has an `ipam` that is no JSON object"
        raise InvalidConfig(
            f'the network configuration {fault}: want "ipam": {{"type": "whereabouts", "range": "192.168.2.0/24"}}'
        )
    is_new = request.command not in ("DEL", "CHECK", "GC")
    source = Source(block, files, faults, is_new)
    config, own = IpamConfig(), keys.RangeEntry()
    config.request = request
    source.fill(config, (*keys.IPAM_KEYS, *keys.ACCEPTED_KEYS), faults)
    source.fill(own, keys.RANGE_KEYS, faults)
    source.follow(config, keys.IPAM_KEYS, faults)
    config.config_path = source.path
    config.node = source.node_name(request.environ.get("NODENAME", ""))
    config.slice_node = ""
    config.notes = source.notes
    dns = {name: getattr(config, f"dns_{name}") for name in ("nameservers", "domain", "search", "options")}
    config.dns = {name: value for name, value in dns.items() if value}
    config.addresses = keys.read_addresses(config.address_entries, source.where, config.notes, faults)
    config.routes = keys.read_routes(config.route_entries, source.where, config.notes, faults)
    text = request.args.get("GATEWAY", "")
    gateways = [attempt(parse_address, part.strip(), "CNI_ARGS GATEWAY", faults) for part in text.split(",") if text]
    config.gateways = [gateway for gateway in gateways if gateway]
    config.kept_back = _kept_back(config)
    config.ranges = keys.read_own_range(own, source.where, config.kept_back, config.notes, faults)
    config.ranges += keys.read_ranges(
        config.ip_ranges, source.where("ipRanges"), config.kept_back, config.notes, faults
    )
    config.requested, config.outside = [], []
    lists = request.of_runtime("ips"), member(request.member("args"), "cni", "ips")
    if request.args.get("IP") or lists != (None, None):
        from ipam import requested  # most attachments request no address

        config.requested, config.outside = requested.read(config, faults)
        config.ranges += config.outside
    if not faults:  # combinations are judged only for valid keys
        _check_whole(request, config, source, faults)
    _choose_store(request, config, source, faults)
    if config.datastore == "etcd":
        source.judge_hosts()
    if is_new:
        faults[:0] = source.borrowed
    else:
        config.borrowed = "; ".join(map(str, source.borrowed))
    if (
        request.command == "ADD"
        and config.store_timeout > keys.MOST_STORE_SECONDS
        and not source.is_of_node("store_timeout")
    ):
        wanted = f"want {keys.MOST_STORE_SECONDS} at most: only the node's own flat file may have more"
        faults.append(Fault(source.where("store_timeout"), config.store_timeout, wanted))
    source.hide(faults)
    config.hidden = source.hidden(config, keys.IPAM_KEYS)
    return config


def _family(text: str) -> int:
    return 6 if ":" in text else 4


def _kept_back(config: IpamConfig) -> list[tuple[int, int]]:
    """The addresses that no range gives: gateways, the next hops of routes, and static addresses."""
    texts = [config.gateway, *(text for a in config.addresses for text in (a.gateway, a.address))]
    texts += [route.gw for route in config.routes]
    return config.gateways + [host_of(text) for text in texts if text]


def _check_whole(request: Request, config: IpamConfig, source: Source, faults: list[Fault]) -> None:
    if not config.ranges and not config.addresses and not config.requested:
        given = list(request.member("ipam"))  # without values: one may be a password
        faults.append(Fault("ipam", given, "gives no address: want range, ipRanges or addresses"))
    families = {rng.family for rng in config.ranges}
    if config.gateway and families and _family(config.gateway) not in families:
        wanted = f"want an IPv{families.pop()} address, as the ranges are"
        faults.append(Fault(source.where("gateway"), config.gateway, wanted))
    if at_least(request.cni_version, "0.3.0"):
        return
    for family in (4, 6):
        ranges = sum(rng.family == family for rng in config.ranges)
        inside = sum(f == family and config.range_of(f, v) is not None for f, v, _ in config.requested)
        outside = sum(f == family for f, _, _ in config.requested) - inside
        count = max(ranges, inside) + outside + sum(a.family == family for a in config.addresses)
        if count > 1:
            wanted = f"holds one IPv{family} address, and this attachment gets {count}: want 0.3.0 or newer"
            faults.append(Fault("cniVersion", request.cni_version, wanted))


def datastore(config: IpamConfig) -> str:
    """The kind of store: the key `datastore`; if absent, the kind whose server is configured, otherwise "file"."""
    return config.datastore or ("kubernetes" if config.kubeconfig else "etcd" if config.etcd_host else "file")


def missing_key(config: IpamConfig) -> str:
    """The key that names the server of the configured store, if this key is missing; otherwise ""."""
    key = keys.DATASTORES.get(config.datastore, "")
    return "" if not key or getattr(config, key.rpartition(".")[2]) else key


def _choose_store(request: Request, config: IpamConfig, source: Source, faults: list[Fault]) -> None:
    """Choose the kind of store. A Kubernetes pod gets this node's file store only if the key `datastore` is "file"."""
    if source.names("etcd_host") and not (source.names("datastore") or source.names("kubernetes.kubeconfig")):
        config.datastore = "etcd"  # the network's choice has precedence over a kubeconfig in the flat file
    chosen, where = config.datastore, source.where("datastore")
    missing, wrong = missing_key(config), {fault.key for fault in faults}
    if missing and source.where(missing) not in wrong:
        faults.append(Fault(where, chosen, f"want {missing} beside it, here or in the flat file"))
    if chosen == "addresslease" and config.node_slice_size:
        wanted = (
            "want it left out: slices keep nodes from contending for one pool object, and with datastore addresslease there is"
            " none; or want datastore kubernetes, which has whereabouts' NodeSlicePools"
        )
        faults.append(Fault(source.where("node_slice_size"), f"/{config.node_slice_size}", wanted))
    hosts, password = source.where("etcd_host"), source.where("etcd_password")
    if config.etcd_password and hosts.startswith("ipam.") and not password.startswith("ipam."):
        wanted = f"want it beside {password}: the administrator's password is not sent to a host that a network names"
        faults.append(Fault(hosts, config.etcd_host, wanted))
    if config.preferred_ip_annotation and not config.kubeconfig:
        wanted = "want kubernetes.kubeconfig beside it, to read the pod by"
        faults.append(Fault(source.where("preferred_ip_annotation"), True, wanted))
    config.datastore = datastore(config)
    size = config.node_slice_size
    if size and config.datastore == "kubernetes" and config.ranges:
        rng, count = config.ranges[0], len(config.ranges)
        wanted = ""
        if count > 1:
            wanted = f"divides one range, and this network has {count}: want no ipRanges, or no node_slice_size"
        elif size < rng.prefix:
            wanted = f"is larger than the range {rng}: want /{rng.prefix} or a longer prefix"
        if wanted:
            faults.append(Fault(source.where("node_slice_size"), f"/{size}", wanted))
    config.unnamed = None
    if chosen or config.datastore != "file":
        return
    pod = request.args.get("K8S_POD_NAME", "")
    looked = f"{source.path} names none" if source.path else f"there is no flat file at {', '.join(source.searched)}"
    unnamed = Fault(
        where,
        None,
        "no store is named, and none is assumed for a pod: see `railcni doctor`",
        f'want "file" for addresses of this node alone, or kubernetes.kubeconfig or etcd_host; {looked}',
    )
    if not pod:
        config.unnamed = unnamed
    elif request.command in ("ADD", "CHECK"):
        naming = {source.where(name) for name in ("datastore", "kubernetes.kubeconfig", "etcd_host")}
        naming |= {"ipam.configuration_path", "ipam.kubernetes", f"{source.path}: kubernetes", source.whole}
        if not wrong & naming:  # else a store is named, but wrongly
            faults.append(unnamed)


# --- for the verbs of a network and of a group of rails ---


def configured(request: Request, log: Log) -> IpamConfig:
    """Return the configuration as `read` does, and set the file, level and hidden texts of `log` from it."""
    config = read(request)
    log.path, log.level, log.hidden = config.log_file, config.log_level, config.hidden
    for note in config.notes:
        log.warning(note)
    if config.node_slice_size and config.datastore == "file":
        log.warning("ipam.node_slice_size has no effect: the file store's addresses are this node's alone")
    return config


def configured_rail(request: Request, log: Log) -> tuple[IpamConfig, Group | None]:
    """The checked configuration, and the network's rail group, None unless rail.addressing is "same-index"."""
    if not asks_for_same_index(request):
        return configured(request, log), None
    from ipam.group import indexes  # most networks are not rails

    rail = indexes.rail_of(request.config)
    config = configured(request, log)
    return config, indexes.group_of(rail, config)


def permit(config: IpamConfig, group: Group | None) -> None:
    """Raise InvalidConfig when the node's policy forbids a range, a static address or the network_name of the network.

    Only ADD and STATUS call this function: an existing attachment can always be checked and deleted. ipam.source
    checks the policy's rules on stores, for every verb.
    """
    node_policy, name = policy.current(), config.network_name
    if not any(policy.matches(one, name) for one in node_policy.networkNames):
        raise node_policy.refusal("networkNames", f'ipam.network_name "{name[:60]}"')
    if "*" in node_policy.ranges:
        return
    try:
        allowed = [Range(*parse_cidr(text)) for text in node_policy.ranges]
    except ValueError as fault:
        raise InvalidConfig(f"{node_policy.path}: ranges {codec.dumps(node_policy.ranges)[:100]}: {fault}") from None
    used = [(f"range {rng}", rng) for rng in ([n.rng for n in group.needs] if group else config.ranges)]
    used += [(f"static address {a.address}", Range(*(at := host_of(a.address)), BITS[at[0]])) for a in config.addresses]
    for what, rng in used:
        if not any(r.family == rng.family and r.network <= rng.network and rng.top <= r.top for r in allowed):
            raise node_policy.refusal("ranges", what)


def owner_of(config: IpamConfig) -> Owner:
    request = config.request
    texts = (*request.pod, request.netns)  # a store could not keep bytes that are not UTF-8: each becomes "?"
    namespace, name, uid, netns = (text.encode("utf-8", "replace").decode() for text in texts)
    machine = "" if config.datastore == "file" else node.machine_id()  # a file store belongs to one machine
    boot = node.boot_id()
    return Owner(request.attachment, (namespace, name, uid), config.node, boot, netns, time.time_ns(), machine)
