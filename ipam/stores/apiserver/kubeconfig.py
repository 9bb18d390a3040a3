"""The API server and the credentials for it: a kubeconfig, or the service account of this pod.

Any author of a network may choose the kubeconfig. So errors show keys of the kubeconfig, but no value except `server`.

A kubeconfig is JSON, as the agent and `kubectl config view -o json` write it. A kubeconfig in YAML needs PyYAML.

The current context is used, as in whereabouts (client-go, tools/clientcmd). Relative paths start at the kubeconfig's
directory. A token in a file is read at each call, since the token rotates.
"""

from __future__ import annotations

import binascii
import os
import sys
from collections.abc import Mapping
from typing import Any

from cni.shared.kernel import files
from cni.shared.spec import codec
from cni.shared.spec.errors import InvalidConfig, TryAgainLater
from ipam.leases import are_texts
from ipam.stores import http

NAMESPACE = "kube-system"  # for objects, when the context names no namespace
SERVICE_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
_MOST_BYTES = 1 << 20
_EXEC_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
_UNREAD = {  # the keys of a user that are not supported, since they choose another identity, each with the remedy
    "auth-provider": "use `exec` in its place",
    "username": "use a token or a client certificate in its place",
    "as": "give the rights to the user itself",
    "as-uid": "give the rights to the user itself",
    "as-groups": "give the rights to the user itself",
}


class _Members:
    """The members of an object in the kubeconfig at `path`. A relative path starts at the kubeconfig's directory."""

    def __init__(self, path: str, values: dict[str, Any]) -> None:
        self._path = path
        self.values = values

    def text(self, key: str) -> str:
        """The text at `key`, or ""."""
        value = self.values.get(key)
        if value is not None and not isinstance(value, str):
            raise InvalidConfig(f"kubeconfig {self._path}: {key} is no text")
        return value or ""

    def file(self, key: str) -> str:
        """The absolute path of the file that `key` names, or ""."""
        path = self.text(key)
        return path if not path or path.startswith("/") else f"{self._path.rpartition('/')[0]}/{path}"

    def pem(self, key: str) -> str | bytes:
        """The decoded PEM in `key`-data. If `key`-data is absent, the path of the PEM file that `key` names, or ""."""
        data = self.text(f"{key}-data")
        if not data:
            return self.file(key)
        try:
            return binascii.a2b_base64("".join(data.split()), strict_mode=True)
        except ValueError:
            raise InvalidConfig(f"kubeconfig {self._path}: {key}-data is not base64") from None


class Access(http.ServerAddress):
    """An API server and the credentials for it. `path` is the path of the kubeconfig, "" for a service account. Files
    that the kubeconfig names are read when they are needed."""

    def __init__(self, path: str, *objects: dict[str, Any]) -> None:
        """`objects` are the cluster, the context and the user of the kubeconfig. Raises InvalidConfig for a fault."""
        cluster, context, user = (_Members(path, found) for found in objects)
        try:
            super().__init__(cluster.text("server"), False, (80, 443))
        except ValueError:
            raise InvalidConfig(
                f"kubeconfig {path}: server of its cluster: want a URL such as https://10.0.0.1:6443"
            ) from None
        self.path = path
        self.namespace = context.text("namespace") or NAMESPACE
        if cluster.values.get("proxy-url"):
            raise InvalidConfig(f"kubeconfig {path}: proxy-url is not supported: name a server that is reached without")
        for key, remedy in _UNREAD.items():
            if user.values.get(key):
                raise InvalidConfig(f"kubeconfig {path}: {key} of its user is not supported: {remedy}")
        self._authority = cluster.pem("certificate-authority")
        self._certificate = user.pem("client-certificate")
        self._key = user.pem("client-key")
        self._insecure = cluster.values.get("insecure-skip-tls-verify") is True
        self.verified_name = cluster.text("tls-server-name") or self.host
        if self._insecure and self._authority:
            raise InvalidConfig(
                f"kubeconfig {path} has both certificate-authority and insecure-skip-tls-verify: remove the second"
            )
        self._token_file, self._token = user.file("tokenFile"), user.text("token")
        described = user.values.get("exec")
        self._helper = _Helper(path, described) if described else None

    def token(self, deadline: float) -> str:
        """The bearer token, or "". Raises CniError if the token's file or the `exec` helper fails, or at `deadline`."""
        if self._token_file:
            try:
                return files.read_regular(self._token_file, _MOST_BYTES).decode("ascii").strip()
            except (OSError, ValueError) as fault:
                why = getattr(fault, "strerror", None) or fault
                raise InvalidConfig(f"the file tokenFile of kubeconfig {self.path or SERVICE_ACCOUNT}: {why}") from None
        if self._token or not self._helper:
            return self._token
        return str(self._helper.credential(deadline).get("token") or "")

    def renews(self) -> bool:
        """Forget the `exec` helper's credential. Returns whether the next call of `token` may give another token."""
        if self._helper:
            self._helper.kept = None
        return bool(self._token_file or self._helper)

    def kept_as(self) -> Any:
        """The key of a kept connection (Client.kept): server and certificates. None if no connection must be kept."""
        if self._helper:
            return None
        pems = [
            files.read_regular(pem, _MOST_BYTES) if isinstance(pem, str) and pem else pem
            for pem in (self._authority, self._certificate, self._key)
        ]
        return self.host, self.port, self.tls, self.verified_name, self._insecure, *pems

    def context(self, deadline: float) -> Any:
        """The SSLContext; None without TLS. Raises InvalidConfig for certificates that cannot be used."""
        if not self.tls:
            return None
        certificate, key = self._certificate, self._key
        if self._helper and not certificate:
            status = self._helper.credential(deadline)
            certificate, key = (str(status.get(f"client{part}Data") or "").encode() for part in ("Certificate", "Key"))
        held: list[int] = []
        try:
            files_of = [_path(pem, held) for pem in (self._authority, certificate, key)]
            context = http.tls_context(*files_of)
        except ValueError as fault:
            text = str(fault)
            for file, name in zip(files_of, ("certificate-authority", "client-certificate", "client-key"), strict=True):
                text = text.replace(file, name) if file else text
            raise InvalidConfig(f"kubeconfig {self.path or SERVICE_ACCOUNT}: {text} (or its -data)") from None
        finally:
            for fd in held:
                os.close(fd)
        if self._insecure:
            context.check_hostname = False
            context.verify_mode = 0
        return context


class _Helper:
    """A kubeconfig's `exec` helper: a program that prints an ExecCredential (client.authentication.k8s.io).

    The program runs without a terminal, with this process's environment and the variables that the kubeconfig adds,
    and is killed at the deadline.
    """

    def __init__(self, path: str, described: Any) -> None:
        """`path` is the kubeconfig; a relative command starts at its directory. `described` is the value of `exec`."""
        self._name = f"the exec helper of kubeconfig {path}"
        self.kept: dict[str, Any] | None = None  # the status of the last credential; None: run the program again
        described = described if isinstance(described, dict) else {}
        command, arguments = described.get("command"), described.get("args") or []
        if not isinstance(command, str) or not command or not are_texts(arguments):
            raise InvalidConfig(f"kubeconfig {path}: exec needs command, a text, and args, a list of texts")
        self._version = described.get("apiVersion")
        if self._version not in _EXEC_VERSIONS:
            raise InvalidConfig(f"kubeconfig {path}: exec.apiVersion is not known: want {' or '.join(_EXEC_VERSIONS)}")
        if described.get("interactiveMode") == "Always":
            raise InvalidConfig(f"kubeconfig {path}: exec.interactiveMode is Always, and a plugin has no terminal")
        if "/" in command and not command.startswith("/"):
            command = f"{path.rpartition('/')[0]}/{command}"
        self._argv = [command, *arguments]
        self._environ: dict[bytes, bytes] = {}
        for entry in described.get("env") or []:
            if not isinstance(entry, dict) or not are_texts([entry.get("name"), entry.get("value")]):
                raise InvalidConfig(f"kubeconfig {path}: exec.env wants objects with name and value, both texts")
            self._environ[entry["name"].encode()] = entry["value"].encode()

    def credential(self, deadline: float) -> dict[str, Any]:
        """The member `status` of the ExecCredential: `token`, or clientCertificateData and clientKeyData (PEM)."""
        if self.kept is None:
            output = self._output(deadline)
            try:
                status = codec.loads(output)["status"]
                if not isinstance(status, dict) or not (status.get("token") or status.get("clientCertificateData")):
                    raise ValueError("status holds neither token nor clientCertificateData")
            except (ValueError, KeyError, TypeError) as fault:
                raise InvalidConfig(f"{self._name} has not printed an ExecCredential: {fault}") from None
            self.kept = status
        return self.kept

    def _output(self, deadline: float) -> bytes:
        from cni.shared.kernel import children  # most kubeconfigs run no command

        info = {"apiVersion": self._version, "kind": "ExecCredential", "spec": {"interactive": False}}
        environ = children.environment(os.environb) | self._environ
        environ[b"KUBERNETES_EXEC_INFO"] = codec.dumps(info).encode()
        environ.setdefault(b"PATH", b"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
        try:
            output, status = children.run(self._argv, environ, deadline=deadline)
        except TimeoutError:
            raise TryAgainLater(
                f"{self._name} has not ended in time: run it by hand and see what it waits for"
            ) from None
        except OSError as fault:
            raise InvalidConfig(f"{self._name} cannot be run: {fault.strerror}") from None
        if status:
            raise InvalidConfig(f"{self._name} failed with status {status}: run it by hand; its errors are on stderr")
        return output


def load(path: str) -> Access:
    """The server and credentials in the kubeconfig at `path`. Raises InvalidConfig for a fault in the kubeconfig."""
    try:
        document = _parsed(files.read_regular(path, _MOST_BYTES))
    except OSError as fault:
        raise InvalidConfig(
            f"kubeconfig {path} cannot be read: {fault.strerror}. kubernetes.kubeconfig must name the file that"
            " whereabouts' or railcni's DaemonSet writes"
        ) from None
    except ValueError as fault:
        raise InvalidConfig(
            f"kubeconfig {path} cannot be read: {fault}. `kubectl config view --raw --flatten -o json` writes it plainly"
        ) from None
    if not isinstance(document, dict):
        raise InvalidConfig(f"kubeconfig {path} holds no object with clusters, users and contexts")
    name = document.get("current-context") or ""
    context = _named(path, document, "contexts", "context", name, "current-context")
    cluster = _named(path, document, "clusters", "cluster", context.get("cluster"), "cluster of its context")
    user = context.get("user") and _named(path, document, "users", "user", context["user"], "user of its context")
    return Access(path, cluster, context, user or {})


def _parsed(data: bytes) -> Any:
    """The document in a kubeconfig. Raises ValueError, whose text does not show the content."""
    try:
        return codec.loads(data)
    except ValueError:
        pass
    import site  # only a kubeconfig in YAML needs it

    sys.path += [folder for folder in site.getsitepackages() if folder not in sys.path]  # plugins start without these
    try:
        import yaml  # only a kubeconfig in YAML needs it
    except ImportError:
        raise ValueError("it is not JSON, and Python has no PyYAML (Debian: python3-yaml) to read YAML with") from None
    try:
        return yaml.safe_load(data)
    except (yaml.YAMLError, ValueError, RecursionError, AttributeError, LookupError) as fault:  # of a tag: !!bool x
        mark = getattr(fault, "problem_mark", None)
        raise ValueError(f"line {mark.line + 1} is not YAML" if mark else "it is not YAML") from None


def service_url(environ: Mapping[bytes, bytes]) -> str:
    """The API server's URL from the variables that the kubelet sets in a pod; "" outside of a pod."""
    host, port = (environ.get(key, b"").decode() for key in (b"KUBERNETES_SERVICE_HOST", b"KUBERNETES_SERVICE_PORT"))
    if not host or not port:
        return ""
    return f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"


def in_cluster(environ: Mapping[bytes, bytes]) -> Access:
    """The server and credentials of this pod's service account (client-go, rest.InClusterConfig)."""
    server = service_url(environ)
    if not server:
        raise InvalidConfig(
            "KUBERNETES_SERVICE_HOST is not set: this is no pod of Kubernetes; name a cluster by --kubeconfig"
        )
    try:
        namespace = files.read_regular(f"{SERVICE_ACCOUNT}/namespace", _MOST_BYTES).decode().strip()
    except (OSError, ValueError):
        namespace = ""
    cluster = {"server": server, "certificate-authority": f"{SERVICE_ACCOUNT}/ca.crt"}
    return Access("", cluster, {"namespace": namespace}, {"tokenFile": f"{SERVICE_ACCOUNT}/token"})


def _named(path: str, document: dict[str, Any], listed: str, inner: str, name: Any, by: str) -> dict[str, Any]:
    """The member `inner` of the entry `name` in the list `listed`. Errors show `by`, the key that names the entry."""
    entries = document.get(listed)
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, dict) and entry.get("name") == name and name:
            value = entry.get(inner)
            if value is None or isinstance(value, dict):
                return value or {}
    fault = f"names none of its {listed}: correct the name" if name else "is missing"
    raise InvalidConfig(f"kubeconfig {path}: {by} {fault}")


def _path(pem: str | bytes, held: list[int]) -> str:
    """The path of `pem`. Bytes are first written to a new memory file, whose descriptor is appended to `held`."""
    if isinstance(pem, str):
        return pem
    fd = os.memfd_create("pem", os.MFD_CLOEXEC)
    held.append(fd)
    while pem:
        pem = pem[os.write(fd, pem) :]
    return f"/proc/self/fd/{fd}"
