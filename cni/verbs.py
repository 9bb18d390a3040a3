"""ADD, DEL, CHECK, GC and STATUS of a link plugin.

What holds for all of them, in this order:

    ADD   lock; clear what a predecessor left; plan; write the record; addresses; link; configure. A failure undoes all
    DEL   lock; the link leaves the sandbox; then the addresses are given back; the record goes last. Every step is
          tried; the addresses are kept when the link would not go, for it may still answer to them
    GC    as DEL, for every record of this network that is not among the valid attachments and that nobody has locked
"""

from __future__ import annotations

from cni import delegate
from cni.attachment import Book
from cni.kernel import ipconfig, netns, node
from cni.kernel.links import Rtnl
from cni.spec import codec, result, versions
from cni.spec.errors import (
    AttachmentDiffers,
    CniError,
    IncompatibleVersion,
    InvalidConfig,
    InvalidNamespace,
    KernelRefused,
    TryAgainLater,
)
from cni.spec.request import Attachment, Request, member
from cni.spec.result import Interface, Result

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from cni.kernel.netns import Namespace
    from cni.log import Log
    from cni.plugins.base import LinkPlugin

PART = "link"
VALID_ATTACHMENTS = "cni.dev/valid-attachments"


def call(name: str, request: Request, log: Log) -> Result | None:
    """Serve `request` with the link plugin `name`; the result of an ADD, None for every other verb."""
    plugin = _plugin(name)
    if request.command == "ADD":
        return add(plugin, request, log)
    verb = {"DEL": delete, "CHECK": check, "GC": collect, "STATUS": status}[request.command]
    verb(plugin, request, log)
    return None


def _plugin(name: str) -> LinkPlugin:
    if name == "macvlan":
        from cni.plugins import macvlan

        return macvlan
    from cni.plugins import host_device

    return host_device


def add(plugin: LinkPlugin, request: Request, log: Log) -> Result:
    """Attach; whatever fails on the way, nothing is left of it."""
    config = plugin.read(request)
    kind = delegate.ipam_type(request.config)
    if not kind and not versions.at_least(request.cni_version, "0.3.0"):
        raise IncompatibleVersion(
            f"cniVersion {request.cni_version} cannot describe an attachment without addresses: use cniVersion 0.3.0 or newer,"
            " or give the network an ipam block"
        )
    book = Book(log=log)
    with _sandbox(request) as sandbox, book.locked(request.attachment, PART):
        host, box = Rtnl(), _rtnl(sandbox)
        former = book.read(request.attachment, PART)
        if former:
            _detach(former, request, host, log)
            if delegate.ipam_type(_config(former)) != kind or not delegate.gives_again(request):
                _release(former, request, log)
        planned = plugin.plan(config, request, plugin.survey(config, request, host, box, book))
        book.write(request.attachment, PART, _record(plugin, request, planned, _identity(sandbox, box)))
        addresses = Result()
        claimed = False
        try:
            if kind:
                addresses = delegate.add(request, log)
                claimed = True
                plugin.check_addresses(planned, addresses.ips)
            link = plugin.apply(planned, host, box, sandbox)
            mac, mtu = "", 0
            if link:
                with sandbox.entered():
                    try:
                        mac, mtu = ipconfig.configure(box, link, addresses, config.dad)
                    except ipconfig.NotUp as fault:
                        raise KernelRefused(plugin.refused_up(planned, fault.cause), str(fault.cause)) from None
        except BaseException as fault:
            _undo(plugin, request, planned, claimed, host, box, book, log, fault)
            raise
        interface = Interface(planned.name, mac, mtu, request.netns, plugin.pci_id(planned))
        for address in addresses.ips:
            address.interface = 0
        return Result([interface], addresses.ips, addresses.routes, config.dns or addresses.dns)


def _undo(
    plugin: LinkPlugin,
    request: Request,
    planned: Any,
    claimed: bool,
    host: Rtnl,
    box: Rtnl,
    book: Book,
    log: Log,
    fault: BaseException,
) -> None:
    """Take back what a failed ADD did. What cannot be taken back keeps its record, for the DEL that follows."""
    try:
        plugin.remove(planned, host, box, log)
        if claimed:
            delegate.delete(request, log)
        book.remove(request.attachment, PART)
    except CniError as second:
        if isinstance(fault, CniError):
            fault.details = f"{fault.details}\nnot undone yet, DEL or GC will: {second.msg}".lstrip()


def delete(plugin: LinkPlugin, request: Request, log: Log) -> None:
    """Detach; any number of times, and whatever has become of the sandbox, the device or the configuration."""
    book = Book(log=log)
    with book.locked(request.attachment, PART):
        record = book.read(request.attachment, PART)
        host = Rtnl()
        faults: list[CniError] = []
        gone = True
        try:
            if record:
                _detach(record, request, host, log)
            else:
                _detach_unrecorded(plugin, request, host, book, log)
        except CniError as fault:
            gone = False
            faults.append(fault)
        if gone:
            try:
                _release(record, request, log)
            except CniError as fault:
                faults.append(fault)
        if not faults:
            book.remove(request.attachment, PART)
        _report(faults, kept="" if gone else delegate.ipam_type(request.config))


def _release(record: dict[str, Any] | None, request: Request, log: Log) -> None:
    """Give the addresses back with the configuration that they were taken with."""
    if record and member(_config(record), "ipam") != member(request.config, "ipam"):
        request = delegate.with_config(request, record["config"].encode())
    if delegate.ipam_type(request.config):
        delegate.delete(request, log)


def _config(record: dict[str, Any]) -> dict[str, Any]:
    """The configuration that the ADD of `record` ran with."""
    config: dict[str, Any] = codec.loads(record["config"].encode())
    return config


def _report(faults: list[CniError], kept: str) -> None:
    if not faults:
        return
    first = faults[0]
    if kept:
        first.msg += f"; its addresses stay reserved with {kept} until the link is gone: DEL again"
    first.details = "\n".join(filter(None, [first.details, *(f.msg for f in faults[1:])]))
    raise first


def _detach(record: dict[str, Any], request: Request, host: Rtnl, log: Log) -> None:
    """Take the link of `record` out of every sandbox that it may be in, as the plugin that made it does."""
    plugin = _plugin(record["plugin"])
    planned = plugin.load(record["link"])
    if record["bootID"] != node.boot_id():
        return  # the links of that boot went with it
    found = False
    for path in dict.fromkeys((record["netns"], request.netns)):
        sandbox = _sandbox_if_any(path, request)
        if sandbox:
            with sandbox:
                box = _rtnl(sandbox)
                if _identity(sandbox, box) == record["sandbox"]:  # not a new one at the path of the old
                    found = True
                    plugin.remove(planned, host, box, log)
    if not found:
        plugin.remove(planned, host, None, log)


def _detach_unrecorded(plugin: LinkPlugin, request: Request, host: Rtnl, book: Book, log: Log) -> None:
    """Detach what another implementation of the plugin attached; a link that a record of ours speaks of is not that."""
    sandbox = _sandbox_if_any(request.netns, request)
    if sandbox:
        with sandbox:
            box = _rtnl(sandbox)
            planned = plugin.adopt(request, host, box)
            if planned and not _is_recorded(planned.name, _identity(sandbox, box), book):
                plugin.remove(planned, host, box, log)


def _is_recorded(name: str, sandbox: str, book: Book) -> bool:
    return any(
        record.get("sandbox") == sandbox and record["link"]["name"] == name
        for _, part, record in book.all()
        if part == PART
    )


def check(plugin: LinkPlugin, request: Request, log: Log) -> None:
    """Compare the attachment with its plan and with prevResult; AttachmentDiffers names all differences."""
    config = plugin.read(request)
    previous = member(request.config, "prevResult")
    if previous is None:
        raise InvalidConfig("CHECK needs the key prevResult: the result of the ADD, which the runtime passes on")
    expected = result.parse(previous)
    delegate.forward(request, log)
    with _sandbox(request) as sandbox:
        host, box = Rtnl(), _rtnl(sandbox)
        name = request.attachment.ifname
        known = [i for i in expected.interfaces if i.name == name and i.sandbox == request.netns]
        if not known:
            raise InvalidConfig(
                f'prevResult has no interface "{name}" in sandbox {request.netns}: pass on the result of this attachment\'s ADD'
            )
        record = Book(log=log).read(request.attachment, PART)
        if record and record["plugin"] != plugin.NAME:
            raise AttachmentDiffers(
                f"attachment {name} of container {request.attachment.container_id} was made by plugin {record['plugin']}, and"
                f" its network is one of {plugin.NAME} by now: detach and attach it again"
            )
        planned = plugin.load(record["link"]) if record else plugin.adopt(request, host, box)
        found = _differences(plugin, planned, box, known[0], expected, _wanted_mtu(config, record))
    if found:
        raise AttachmentDiffers(
            f"attachment {name} of container {request.attachment.container_id} is not as ADD left it: {'; '.join(found)}."
            " Detach and attach it again"
        )


def _wanted_mtu(config: Any, record: dict[str, Any] | None) -> int:
    recorded = record["link"].get("mtu", 0) if record else 0
    return getattr(config, "mtu", 0) or recorded


def _differences(
    plugin: LinkPlugin, planned: Any, box: Rtnl, known: Interface, expected: Result, mtu: int
) -> list[str]:
    link = box.link(name=known.name)
    if link is None:
        return [f'there is no link "{known.name}" in the sandbox'] if known.mac else []  # a DPDK device has none
    found = plugin.differences(planned, link) if planned else []
    if known.mac and link.mac != known.mac:
        found.append(f"MAC is {link.mac}, was {known.mac}")
    wanted = known.mtu or mtu
    if wanted and link.mtu != wanted:
        found.append(f"MTU is {link.mtu}, was {wanted}")
    if not link.up:
        found.append("link is down")
    here = [a for a in expected.ips if a.interface is None or expected.interfaces[a.interface] is known]
    return found + ipconfig.differences(box, link, Result([known], here, expected.routes))


def collect(plugin: LinkPlugin, request: Request, log: Log) -> None:
    """GC: detach what the runtime no longer knows; then let the IPAM plugin collect."""
    valid = valid_attachments(request)
    book = Book(log=log)
    host = Rtnl()
    faults: list[CniError] = []
    keep: list[Attachment] = []
    for attachment, _ in book.of_network(request.attachment.network, PART):
        if attachment in valid:
            continue
        held = book.try_locked(attachment, PART)
        if held is None:  # an ADD or DEL of it is under way
            keep.append(attachment)
            continue
        with held:
            record = book.read(attachment, PART)
            if record is None:
                continue
            own = _for_attachment(request, attachment, record)
            try:
                _detach(record, own, host, log)
            except CniError as fault:
                keep.append(attachment)
                faults.append(fault)
                continue
            try:
                _release(record, own, log)
                book.remove(attachment, PART)
            except CniError as fault:
                faults.append(fault)
    book.sweep(request.attachment.network)
    try:
        delegate.forward(_also_valid(request, keep), log)
    except CniError as fault:
        faults.append(fault)
    _report(faults, kept="")


def valid_attachments(request: Request) -> set[Attachment]:
    """The attachments that GC must keep; InvalidConfig when the list is absent: then nothing may be collected."""
    listed = member(request.config, VALID_ATTACHMENTS)
    if not isinstance(listed, list):
        raise InvalidConfig(
            f'GC needs the list "{VALID_ATTACHMENTS}" (empty when nothing is attached): without it nothing is collected'
        )
    found = set()
    for entry in listed:
        container_id = member(entry, "containerID") if isinstance(entry, dict) else None
        ifname = member(entry, "ifname") if isinstance(entry, dict) else None
        if not isinstance(container_id, str) or not isinstance(ifname, str):
            raise InvalidConfig(
                f'an entry of "{VALID_ATTACHMENTS}" is not {{"containerID": string, "ifname": string}}: nothing is collected'
            )
        found.add(Attachment(request.attachment.network, container_id, ifname))
    return found


def _for_attachment(request: Request, attachment: Attachment, record: dict[str, Any]) -> Request:
    """The DEL that the runtime would have sent for `attachment`."""
    environ = {
        **request.environ,
        "CNI_COMMAND": "DEL",
        "CNI_CONTAINERID": attachment.container_id,
        "CNI_IFNAME": attachment.ifname,
        "CNI_NETNS": record["netns"],
    }
    stdin = record["config"].encode()
    return Request(environ, stdin, codec.loads(stdin), request.args)


def _also_valid(request: Request, keep: list[Attachment]) -> Request:
    if not keep:
        return request
    listed = [
        *member(request.config, VALID_ATTACHMENTS),
        *({"containerID": a.container_id, "ifname": a.ifname} for a in keep),
    ]
    return delegate.with_config(request, codec.dumps({**request.config, VALID_ATTACHMENTS: listed}).encode())


def status(plugin: LinkPlugin, request: Request, log: Log) -> None:
    """Whether an ADD could be served now; NotAvailable or LimitedConnectivity when not."""
    config = plugin.read(request)
    plugin.status(config, Rtnl(), log)
    delegate.forward(request, log)


def _record(plugin: LinkPlugin, request: Request, planned: Any, sandbox: str) -> dict[str, Any]:
    return {
        "plugin": plugin.NAME,
        "netns": request.netns,
        "sandbox": sandbox,
        "pod": list(request.pod),
        "config": request.stdin.decode(),
        "link": planned.document(),
    }


def _sandbox(request: Request) -> Namespace:
    sandbox = netns.open_namespace(request.netns)
    if not request.netns_override and netns.same(sandbox, netns.own()):
        sandbox.close()
        raise InvalidNamespace(
            f"CNI_NETNS {request.netns} is the plugin's own network namespace: pass the sandbox's, or set CNI_NETNS_OVERRIDE=1 if it is meant"
        )
    return sandbox


def _sandbox_if_any(path: str, request: Request) -> Namespace | None:
    """The sandbox at `path`, or None when it is gone: then so are its links. The plugin's own never was one."""
    try:
        if not path or not netns.exists(path):
            return None
    except OSError as fault:  # it may be there: what is in it must not be taken for gone
        raise TryAgainLater(f"network namespace {path} cannot be looked at: {fault.strerror}; retry") from None
    sandbox = netns.open_namespace(path)
    if not request.netns_override and netns.same(sandbox, netns.own()):
        sandbox.close()
        return None
    return sandbox


def _identity(sandbox: Namespace, box: Rtnl) -> str:
    """What tells this sandbox from a later one at the same path."""
    cookie = box.namespace_cookie()
    return f"cookie {cookie}" if cookie else f"inode {sandbox.device}:{sandbox.inode}"


def _rtnl(sandbox: Namespace) -> Rtnl:
    with sandbox.entered():
        return Rtnl()
