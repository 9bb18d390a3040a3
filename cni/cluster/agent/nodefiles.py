"""The files with which a node's plugins reach the API server: kubeconfig, flat file (whereabouts.conf), node name.

The names, the directory (whereabouts.d in the runtime's net.d) and the content are those of whereabouts' DaemonSet. So
either the agent or the DaemonSet can write the files, and the plugins of both projects can read them.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import Any

from cni.shared.kernel import files
from cni.shared.spec import codec
from cni.shared.spec.errors import InvalidConfig, IoFailure
from cni.shared.spec.request import member
from ipam.stores import IN_CLUSTER
from ipam.stores.apiserver import Api
from ipam.stores.base import Unreachable

TOKEN_SECONDS = 24 * 3600  # the requested lifetime of a token; the server may grant less
FOLDER, KUBECONFIG, FLAT_FILE, NODE_NAME = "whereabouts.d", "whereabouts.kubeconfig", "whereabouts.conf", "nodename"
OWN = "agent.kubeconfig"  # in the state directory; it holds no secret
_MOST_BYTES = 1 << 20
_OWN_WORDS = "Written by `railcni agent`, again whenever the token or the authority changes."


def service_account_token(folder: str) -> str:
    """The service account's token that the kubelet keeps in `folder`; "" if there is none. Raises IoFailure when the
    file cannot be read, and InvalidConfig when the file has no valid token."""
    token = read(f"{folder}/token")
    if token is None:
        return ""
    text = token.decode("ascii", "replace").strip()
    if not text or not text.isprintable() or "\ufffd" in text or '"' in text or "\\" in text:
        raise InvalidConfig(f"{folder}/token holds no token: want a service account's, as the kubelet writes it")
    return text


def kubeconfig(server: str, token: str, authority: bytes, namespace: str) -> bytes:
    """The plugins' kubeconfig as whereabouts writes it, but in JSON, a subset of YAML. `authority` is the CA in PEM."""
    cluster = {"server": server}
    if authority:
        cluster["certificate-authority-data"] = base64.b64encode(authority).decode()
    document = _config(cluster, "whereabouts", {"token": token}, namespace, "whereabouts-context")
    document["extensions"] = [{"name": "railcni", "extension": {"note": _OWN_WORDS}}]
    return json.dumps(document, indent=2).encode()


def _config(cluster: dict[str, str], user: str, access: dict[str, str], namespace: str, context: str) -> dict[str, Any]:
    """A kubeconfig with one cluster, one user and one context."""
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "local", "cluster": cluster}],
        "users": [{"name": user, "user": access}],
        "contexts": [{"name": context, "context": {"cluster": "local", "user": user, "namespace": namespace}}],
        "current-context": context,
    }


def is_own(data: bytes) -> bool:
    """Whether an agent, and not whereabouts' DaemonSet, has written the kubeconfig `data`."""
    return _OWN_WORDS.encode() in data


def own_kubeconfig(server: str, folder: str, namespace: str) -> bytes:
    """The agent's own kubeconfig. It names the service account's files in `folder`, which rotate, and has no token."""
    cluster = {"server": server}
    if os.path.exists(f"{folder}/ca.crt"):
        cluster["certificate-authority"] = f"{folder}/ca.crt"
    return json.dumps(_config(cluster, "agent", {"tokenFile": f"{folder}/token"}, namespace, "agent")).encode()


def flat_file(present: bytes | None, folder: str, datastore: str, choose: Callable[[str], str]) -> bytes:
    """The new content of the flat file: `present` (None if there is no file) with missing keys added.

    If the file names a store outside of the API server, neither `datastore` nor a kubeconfig is added. If it names no
    store, `choose(proposed)` returns the store to add. For a new file, `datastore` is proposed. For a present file,
    which whereabouts wrote, "kubernetes" (IPPools) is proposed. `folder` is the host's path of whereabouts.d. Raises
    InvalidConfig when the file is no JSON object, since another program may own it.
    """
    document: Any = {}
    if present is not None and present.strip():
        try:
            document = codec.loads(present)
        except ValueError as fault:
            raise InvalidConfig(f"{folder}/{FLAT_FILE} is not JSON, and is left as it is: {fault}") from None
        if not isinstance(document, dict):
            raise InvalidConfig(
                f"{folder}/{FLAT_FILE} is left as it is: want a JSON object with keys of the ipam block"
            )
    wanted = dict(document)
    if member(wanted, "configuration_path") in (None, ""):
        wanted["configuration_path"] = folder
    store = member(document, "datastore") or ("etcd" if member(document, "etcd_host") else "")
    if store in ("", *IN_CLUSTER):
        store = store or choose(datastore if present is None else "kubernetes")
        if member(wanted, "datastore") in (None, ""):
            wanted["datastore"] = store
        nested, path = member(wanted, "kubernetes"), f"{folder}/{KUBECONFIG}"
        if nested is None:
            wanted["kubernetes"] = {"kubeconfig": path}
        elif isinstance(nested, dict) and member(nested, "kubeconfig") in (None, ""):
            name = next(key for key in wanted if key.lower() == "kubernetes")
            wanted[name] = {**nested, "kubeconfig": path}
    if present is not None and wanted == document:
        return present
    return json.dumps(wanted, indent=2).encode() + b"\n"


def datastore(data: bytes) -> str:
    """The store that the flat file's content `data` names; "" if it names none."""
    return str(member(codec.loads(data), "datastore") or "")


def read(path: str) -> bytes | None:
    """The content of the file at `path`; None if there is no file. Raises IoFailure when the file cannot be read."""
    try:
        return files.read_regular(path, _MOST_BYTES)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as fault:
        raise IoFailure(f"cannot read {path}: {getattr(fault, 'strerror', None) or fault}") from None


def put(folder: str, name: str, data: bytes) -> bool:
    """Write `data` to the file `name` in `folder` atomically, with mode 0600. Returns False if nothing had to change. A
    missing `folder` is made, but not its parent, which belongs to the runtime. Raises IoFailure when writing fails."""
    path = f"{folder}/{name}"
    with suppress(OSError):
        if os.stat(path, follow_symlinks=False).st_mode == 0o100600 and read(path) == data:
            return False
    try:
        if not os.path.isdir(folder):
            os.mkdir(folder, 0o755)
            files.sync(os.path.dirname(folder))
        files.write_whole(folder, name, data, durable=True)
    except OSError as fault:
        message = f"cannot write {path}: {fault.strerror}. See that {os.path.dirname(folder)} is the folder in which the runtime looks for networks (--conf-dir), and is mounted writable"
        raise IoFailure(message) from None
    return True


class Tokens:
    """The token of the plugins, requested for the service account `account` ("NAMESPACE/NAME").

    If `account` is "", the plugins use the agent's own token. This token is valid only while the agent's pod exists, so
    the server refuses the plugins while the agent is replaced. A requested token is bound to the Node `node`, has only
    the plugins' rights, and outlives the agent by at least half a day. `unbound` is "" when the token is bound.
    Otherwise it is the reason: the server is older than 1.31 and cannot bind a token to a Node, or the Node does not
    exist (KEP-4193).
    """

    def __init__(self, account: str, node: str, clock: Callable[[], float] = monotonic) -> None:
        self._namespace, _, self._name = account.partition("/")
        self._node = node
        self.unbound = ""
        self._clock = clock
        self._token = ""
        self._renewal = 0.0

    def current(self, own: str, api: Callable[[], Api]) -> str:
        """The plugins' token. Without an account, this is `own`, the agent's token. Otherwise it is a requested token,
        which is replaced after half its lifetime. Raises CniError when a request fails."""
        if not self._name:
            return own
        if not self._token or self._clock() >= self._renewal:
            began = self._clock()
            answer = self._requested(api())
            self._token = str((answer.get("status") or {}).get("token") or "")
            if not self._token:
                raise Unreachable(f"{api()} has issued no token for the service account {self._namespace}/{self._name}")
            seconds = int((answer.get("spec") or {}).get("expirationSeconds") or TOKEN_SECONDS)
            self._renewal = began + seconds / 2
        return self._token

    def _requested(self, api: Api) -> dict[str, Any]:
        resource, wanted = f"serviceaccounts/{self._name}/token", {"audiences": [], "expirationSeconds": TOKEN_SECONDS}
        bound = {"kind": "Node", "apiVersion": "v1", "name": self._node}  # the server adds the UID
        try:
            answer = api.create(
                resource, {"metadata": {}, "spec": {**wanted, "boundObjectRef": bound}}, self._namespace
            )
            self.unbound = ""
        except InvalidConfig as refused:  # if a policy is the reason, the second request fails too
            answer = api.create(resource, {"metadata": {}, "spec": wanted}, self._namespace)
            self.unbound = refused.details or refused.msg
        return answer

    def forget(self) -> None:
        """Forget the token, which the server has refused, so that `current` requests a new token."""
        self._token = ""
