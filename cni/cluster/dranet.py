"""The program `railcni dranet-ipam`: the webhook by which DRANET's devices get addresses from an IPAM plugin of CNI.

DRANET (github.com/kubernetes-sigs/dranet) is a DRA driver that moves a device into a pod without CNI. With its option
--profile-provider=webhook (site/content/docs/contributing/webhook-providers.md) it asks this program for the addresses
of each device whose claim names a `profile`. A profile is a file in --conf-dir with this `name` and an `ipam` block.
The IPAM plugin of the block is executed with the claim's UID as containerID, and with an interface name made from the
device's name. DRANET's example webhook for Go's whereabouts uses the same containerID and name, so each webhook can
release addresses that the other has given.

DRANET does not repeat a failed release. So this program frees the leases of deleted ResourceClaims. It finds these
leases in this node's records, as those with a profile as network, a UID as containerID, and no pod. Kubernetes keeps
the object of a claim while a pod uses the claim. A lease is freed when two readings, a grace period apart, do not find
its claim.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import stat
import threading
import time
import uuid
from collections.abc import Callable
from glob import glob
from socketserver import ThreadingMixIn, UnixStreamServer
from typing import Any

from cni.cluster.agent.loop import Ended, end_on_signals
from cni.cluster.audit.cluster import read_all
from cni.cluster.audit.store import kubeconfig_of, of_flat_file
from cni.documents.tree import string_at
from cni.node.runtime.cache import Parameters
from cni.node.runtime.executables import Executables
from cni.node.service.endpoint import TEXT, Handler
from cni.node.service.log import AgentLog
from cni.shared.kernel.files import read_whole
from cni.shared.records import STATE, Records
from cni.shared.spec import codec
from cni.shared.spec.errors import CniError, InvalidConfig, IoFailure
from cni.shared.spec.request import Attachment, ifname_fault, is_identifier
from ipam.leases import PART
from ipam.stores.apiserver import Api
from ipam.stores.apiserver.faults import Forbidden
from ipam.stores.apiserver.resources import CLAIMS, EVERYWHERE

_SECONDS = 30.0  # for one request to the API server
_PAGE = 1000
_VERSION = "1.0.0"  # the cniVersion of the results that are read here
_MOST_BYTES = 1 << 20
_JSON = "application/json"
_LINK_SCOPE = 253  # rtnetlink(7), RT_SCOPE_LINK: a route without a gateway
_OF_CALLER = (4, 7)  # CNI error codes for faults of the request
_FNV_BASE, _FNV_PRIME = 0x811C9DC5, 0x01000193  # FNV-1a of 32 bits


class UnknownProfile(CniError):
    """A request names a profile that no file defines."""


class Profiles:
    """Runs the IPAM plugins of the profiles in `directory`, whose files are read again for each request."""

    def __init__(self, directory: str, executables: Executables) -> None:
        self._directory = directory
        self._executables = executables

    def give(self, request: dict[str, Any]) -> dict[str, Any]:
        """Allocate addresses for a device, or find those of an earlier request. Returns the reply, with routes."""
        result = self.run("ADD", _attachment(request)) or {}
        addresses = result.get("ips") or []
        gateways = {":" in one["gateway"]: one["gateway"] for one in addresses if one.get("gateway")}
        routes = []
        for route in result.get("routes") or []:
            gateway = route.get("gw") or gateways.get(":" in route["dst"])
            routes.append(
                {"destination": route["dst"], **({"gateway": gateway} if gateway else {"scope": _LINK_SCOPE})}
            )
        return {"interface": {"addresses": [one["address"] for one in addresses]}, "routes": routes}

    def release(self, request: dict[str, Any]) -> dict[str, Any]:
        """Free the addresses of a device, if it still has any. Returns an empty reply."""
        self.run("DEL", _attachment(request))
        return {}

    def has(self, name: str) -> bool:
        """Whether there is a valid profile of this name."""
        with contextlib.suppress(CniError):
            return bool(self._profile(name))
        return False

    def run(self, verb: str, attachment: Attachment) -> Any:
        """Call the IPAM plugin of the attachment's profile with `verb`. Returns the plugin's result."""
        config, container = self._profile(attachment.network), attachment.container_id
        args = (("IgnoreUnknown", "1"), ("K8S_POD_INFRA_CONTAINER_ID", container))
        parameters = Parameters(container, os.devnull, attachment.ifname, args)
        return self._executables.run(verb, config["ipam"]["type"], config, parameters)

    def _profile(self, name: str) -> dict[str, Any]:
        """The configuration of the profile `name`. Raises UnknownProfile, or InvalidConfig if its file has a fault."""
        for path in sorted(glob(f"{self._directory}/*.conf") + glob(f"{self._directory}/*.json")):
            found = None
            with contextlib.suppress(OSError, ValueError):
                found = codec.loads(read_whole(path))
            if not isinstance(found, dict) or found.get("name") != name:
                continue  # a file of a runtime or of another program
            kind = string_at(found, "ipam", "type")
            if "type" in found or not kind or "/" in kind:
                wanted = "`name` and `ipam` with its `type`, such as whereabouts, and no `type` beside them"
                raise InvalidConfig(f"{path}: a profile has {wanted}")
            return {**found, "cniVersion": _VERSION}
        remedy = "put a file there with `name` and `ipam`"
        raise UnknownProfile(f'there is no profile "{name}" in {self._directory}: {remedy}')


def _attachment(request: dict[str, Any]) -> Attachment:
    """The attachment that `request` names: profile, claim UID and device name. Raises InvalidConfig for a wrong UID."""
    container = string_at(request, "claim_uid")
    if not is_identifier(container):
        raise InvalidConfig(f'claim_uid "{container}": want the UID of a ResourceClaim')
    ifname = ifname_of(string_at(request, "device", "name"))
    return Attachment(string_at(request, "config", "profile"), container, ifname)


def ifname_of(device: str) -> str:
    """The interface name for the plugin: `device` if it is valid, else `device` without "pci-", else a hash."""
    for name in (device, device.removeprefix("pci-")):
        if name and not ifname_fault(name):
            return name
    number = _FNV_BASE
    for byte in device.encode():
        number = (number ^ byte) * _FNV_PRIME & 0xFFFFFFFF
    return f"dra{number:08x}"


class _ProfileServer(ThreadingMixIn, UnixStreamServer):
    daemon_threads = True

    def __init__(self, path: str, profiles: Profiles, log: AgentLog) -> None:
        self.posts: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
            "/GetProfileConfig": profiles.give,
            "/ReleaseProfileConfig": profiles.release,
            "/GetDeviceAttributes": lambda request: {},  # attributes of a cloud: none, as /health says
            "/GetDeviceConfig": lambda request: {},
        }
        self.log = log
        super().__init__(path, _ProfileHandler)


class _ProfileHandler(Handler):
    timeout = 30
    server: _ProfileServer

    def do_GET(self) -> None:
        if self.path == "/health":
            self.send(200, _JSON, json.dumps({"cloudProvider": False, "profileProvider": True}))
        else:
            self.send(404, TEXT, f"want /health, or POST of {', '.join(self.server.posts)}")

    def do_POST(self) -> None:
        act, request = self.server.posts.get(self.path), None
        if act is None:
            return self.send(404, TEXT, f"want {', '.join(self.server.posts)}")
        with contextlib.suppress(ValueError):
            size = int(self.headers.get("Content-Length") or 0)
            request = codec.loads(self.rfile.read(size)) if 0 < size <= _MOST_BYTES else None
        if not isinstance(request, dict):
            return self.send(400, TEXT, "want a JSON object of at most 1 MiB, with its Content-Length")
        try:
            answer = json.dumps(act(request))
        except CniError as fault:
            claim, device = string_at(request, "claim_uid"), string_at(request, "device", "name")
            self.server.log.say("warning", fault.msg, request=self.path, claim=claim, device=device)
            status = 404 if isinstance(fault, UnknownProfile) else 400 if fault.code in _OF_CALLER else 500
            return self.send(status, TEXT, fault.msg)
        return self.send(200, _JSON, answer)


def run(options: argparse.Namespace) -> None:
    """Serve until a signal. `options` are the command's options. Raises IoFailure if the socket cannot be made."""
    log = AgentLog(options.log_level)
    profiles = Profiles(options.conf_dir, Executables(options.cni_path.split(":")))
    _make_way(options.socket)
    usual = os.umask(0o177)  # only root may connect, since a client can take and free addresses
    try:
        server = _ProfileServer(options.socket, profiles, log)
    except OSError as fault:
        why = f"{fault.strerror or fault}: name another file with --socket"
        raise IoFailure(f"cannot listen on {options.socket}: {why}") from None
    finally:
        os.umask(usual)
    end_on_signals()
    threading.Thread(target=_free_gone, args=(profiles, options, log), daemon=True).start()
    log.say("info", "railcni dranet-ipam serves", socket=options.socket, profiles=options.conf_dir)
    try:
        with contextlib.suppress(Ended):
            server.serve_forever()
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(options.socket)


def _free_gone(profiles: Profiles, options: argparse.Namespace, log: AgentLog) -> None:
    """Every `grace` seconds, free the attachments whose claim was missing in the last two readings. Log faults."""
    gone: set[Attachment] = set()
    while True:
        try:
            found = _without_claim(profiles, options, log)
            for attachment in found & gone:
                profiles.run("DEL", attachment)
                log.say("warning", f"freed {attachment}: its ResourceClaim is gone, and DRANET released nothing")
            gone = found
            log.state("claims", "")
        except CniError as fault:
            more = ": apply conf/examples/dranet-rbac.yaml" if isinstance(fault, Forbidden) else ""
            log.state("claims", f"leases of claims that are gone are not freed: {fault.msg}{more}")
        time.sleep(options.grace)


def _without_claim(profiles: Profiles, options: argparse.Namespace, log: AgentLog) -> set[Attachment]:
    """This node's attachments that DRANET made for ResourceClaims that no longer exist."""
    held = [a for a, _, record in Records(STATE, log).all(PART) if _is_of_claim(a, record) and profiles.has(a.network)]
    path = (kubeconfig_of(options.kubeconfig) or of_flat_file().kubeconfig) if held else ""
    if not path:
        return set()
    with contextlib.closing(Api(path, _SECONDS)) as api:  # read after the records: a claim exists before its lease
        claims = read_all(lambda: api.pages(CLAIMS, brief=True, namespace=EVERYWHERE, size=_PAGE))
    uids = {claim["metadata"]["uid"] for claim in claims}
    return {attachment for attachment in held if attachment.container_id not in uids}


def _is_of_claim(attachment: Attachment, record: dict[str, Any]) -> bool:
    with contextlib.suppress(ValueError):
        uuid.UUID(attachment.container_id)
        return record.get("netns") == os.devnull and not any(record.get("pod") or ())
    return False


def _make_way(path: str) -> None:
    """Make the socket's folder, and remove an unused socket. Raises IoFailure if a process listens on the socket."""
    try:
        os.makedirs(os.path.dirname(path) or ".", 0o755, exist_ok=True)
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            raise IoFailure(f"{path} is no socket: name another file with --socket")
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(path)
    except FileNotFoundError:
        pass
    except ConnectionRefusedError:
        os.unlink(path)
    except OSError as fault:
        raise IoFailure(f"{path}: {fault.strerror}: name another file with --socket") from None
    else:
        raise IoFailure(f"another process listens on {path}: end it, or name another file with --socket")
