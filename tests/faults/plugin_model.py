"""What the plugins should do, told with dicts: networks, sandboxes, records, leases and one device. Pure.

Every verb changes the model as the plugins must change the node, and says the address of an ADD or the code of the error."""

import ipaddress
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

DEVICE = "ens9"
GONE, TAKEN_OR_FULL, UNAVAILABLE, DIFFERS = 8, 11, 50, 100  # CNI error codes
Key = tuple[str, str]  # network, container


@dataclass(frozen=True)
class Network:
    """A network's configuration as it is now. `space` is its network_name; `overlap` whether it reserves across pools."""

    name: str
    ifname: str
    type: str = "macvlan"
    range: str | None = None
    space: str = ""
    overlap: bool = True
    mtu: int = 1500

    @property
    def pool(self) -> str:
        prefix = f"{self.space}-" if self.space else ""
        return prefix + str(self.range).replace("/", "-")

    @property
    def scope(self) -> str | None:
        return self.space if self.overlap else None

    def usable(self) -> Iterator[str]:
        """The addresses that may be given, lowest first."""
        return (str(a) for a in ipaddress.ip_network(str(self.range)).hosts())


@dataclass(frozen=True)
class Lease:
    """An address that is leased to `key`, and what else the store says of it."""

    pool: str
    address: str
    key: Key
    scope: str | None
    pod: tuple[str, str]  # name and uid, "" for what is not known
    ifname: str
    boot: int
    sandbox: str


@dataclass
class Sandbox:
    """A namespace, named as its container; `pod` is (name, uid)."""

    name: str
    pod: tuple[str, str]
    links: dict[str, tuple[str, int, str]] = field(default_factory=dict)  # ifname: kind, MTU, address/length or ""


@dataclass
class Record:
    """What stands of an attachment: the configuration it was made with, and whether its IPAM part is there."""

    network: Network
    boot: int
    ipam: bool
    given: str = ""


@dataclass(frozen=True)
class Answer:
    """What a call must answer: a CNI error code, 0 for none; for an ADD the addresses of which one must be given."""

    codes: tuple[int, ...] = (0,)
    addresses: tuple[str, ...] = ()


class Model:
    """The node."""

    def __init__(self, networks: Sequence[Network]) -> None:
        self.networks = {n.name: n for n in networks}
        self.sandboxes: dict[str, Sandbox] = {}
        self.pods: dict[str, tuple[str, str]] = {}  # of all containers there ever were
        self.records: dict[Key, Record] = {}
        self.leases: list[Lease] = []
        self.device = DEVICE  # its name on the host; "" when it is in a sandbox
        self.boot = 0

    def create(self, container: str, pod: tuple[str, str]) -> None:
        self.sandboxes[container] = Sandbox(container, pod)
        self.pods[container] = pod

    def vanish(self, container: str) -> None:
        """The sandbox goes without a DEL; the kernel gives a device back under the name that it had there."""
        for ifname, (kind, _, _) in self.sandboxes.pop(container).links.items():
            if kind == "host-device":
                self.device = ifname

    def reboot(self) -> None:
        self.boot += 1
        self.sandboxes.clear()
        self.device = DEVICE

    def change(self, network: Network) -> None:
        self.networks[network.name] = network

    def add(self, name: str, container: str) -> Answer:
        network, key = self.networks[name], (name, container)
        sandbox = self.sandboxes.get(container)
        if sandbox is None:
            return Answer((GONE,))
        record = self.records.get(key)
        if record:
            self._detach(key, record)
            if bool(record.network.range) != bool(network.range):
                self._release(key, record)
        if network.type == "host-device":
            if not self.device:
                return Answer((TAKEN_OR_FULL,))
            self.device = DEVICE  # one whose sandbox ended without a DEL gives it back first
        addresses: tuple[str, ...] = ()
        if network.range:
            candidates = self._candidates(network, key, sandbox.pod)
            lowest = "" if candidates else self._lowest_free(network, key)
            if not candidates and not lowest:
                self._forget(key)
                return Answer((TAKEN_OR_FULL,))
            addresses = tuple(lease.address for lease in candidates) or (lowest,)
        self.records[key] = Record(network, self.boot, bool(network.range))
        return Answer(addresses=addresses)

    def added(self, name: str, container: str, address: str) -> None:
        """The ADD that `add` foretold gave this one of the addresses; "" when the network has none."""
        network, key = self.networks[name], (name, container)
        sandbox = self.sandboxes[container]
        if address:
            moved = [x for x in self._candidates(network, key, sandbox.pod) if x.address == address]
            self.leases = [x for x in self.leases if x.key != key and x not in moved]
            place = (network.pool, address, key, network.scope)
            self.leases.append(Lease(*place, sandbox.pod, network.ifname, self.boot, container))
        self.records[key].given = address
        text = f"{address}/{str(network.range).partition('/')[2]}" if address else ""
        sandbox.links[network.ifname] = (network.type, network.mtu, text)
        if network.type == "host-device":
            self.device = ""

    def delete(self, name: str, container: str) -> Answer:
        record = self.records.get((name, container))
        if record:
            self._detach((name, container), record)
        self._forget((name, container))
        return Answer()

    def check(self, name: str, container: str) -> Answer:
        """CHECK of an attachment that has a record, with the result of its last ADD."""
        network, record = self.networks[name], self.records[name, container]
        sandbox = self.sandboxes.get(container)
        whole = sandbox is not None and network.ifname in sandbox.links
        if network.range:
            held = [x.address for x in self.leases if x.key == (name, container)]
            whole = whole and held == [record.given]
        if whole and record.network == network:
            return Answer()
        if whole and record.network.type == network.type:  # CHECK goes by the network as it is now
            return Answer((0, DIFFERS))
        return Answer((DIFFERS,) if sandbox else (GONE, DIFFERS))

    def collect(self, name: str, valid: Sequence[str], locked: Sequence[str] = ()) -> Answer:
        for key in [k for k in self.records if k[0] == name and k[1] not in {*valid, *locked}]:
            self.delete(*key)
        return Answer()

    def status(self, name: str) -> Answer:
        network = self.networks[name]
        full = network.range and not self._lowest_free(network, None)
        return Answer((UNAVAILABLE,) if full else (0,))

    def _detach(self, key: Key, record: Record) -> None:
        """The link leaves the sandbox; a device comes back as it was. Links of an earlier boot are no more."""
        if record.boot != self.boot:
            return
        sandbox = self.sandboxes.get(key[1])
        ifname = record.network.ifname
        link = sandbox.links.pop(ifname, None) if sandbox else None
        if record.network.type == "host-device" and (link or self.device == ifname):
            self.device = DEVICE

    def _release(self, key: Key, record: Record) -> None:
        self.leases = [x for x in self.leases if x.key != key]
        record.ipam = False

    def _forget(self, key: Key) -> None:
        self.leases = [x for x in self.leases if x.key != key]
        self.records.pop(key, None)

    def _candidates(self, network: Network, key: Key, pod: tuple[str, str]) -> list[Lease]:
        """The leases whose address an ADD must keep: its own, or else one of its pod's former sandboxes."""
        fitting = [x for x in self.leases if x.pool == network.pool and x.address in network.usable()]
        own = [x for x in fitting if x.key == key]
        return own or [x for x in fitting if x.key != key and x.ifname == network.ifname and _same_pod(x.pod, pod)]

    def _lowest_free(self, network: Network, key: Key | None) -> str:
        """The lowest address that may be given; "" when there is none, even without what an earlier boot left."""
        found = self._search(network)
        if not found:
            old = {x.key for x in self.leases if x.pool == network.pool and x.boot != self.boot} - {key}
            for dead in old:
                if all(x.boot != self.boot and x.sandbox not in self.sandboxes for x in self.leases if x.key == dead):
                    self._release(dead, self.records[dead])
            found = self._search(network)
        return found

    def _search(self, network: Network) -> str:
        scope = network.scope
        taken = {x.address for x in self.leases if x.pool == network.pool or (scope is not None and x.scope == scope)}
        return next((a for a in network.usable() if a not in taken), "")

    def changed(self, name: str, **keys: object) -> Network:
        """The network `name` with other values for some keys."""
        return replace(self.networks[name], **keys)  # type: ignore[arg-type]


def _same_pod(former: tuple[str, str], pod: tuple[str, str]) -> bool:
    """Not when both uids are known and differ: then it is another pod of the same name."""
    return bool(pod[0]) and former[0] == pod[0] and not (former[1] and pod[1] and former[1] != pod[1])
