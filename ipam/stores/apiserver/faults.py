"""The error replies of an API server as exceptions, each with its remedy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cni.shared.spec import codec
from cni.shared.spec.errors import CniError, InvalidConfig, TryAgainLater
from ipam.stores.apiserver.resources import (
    ADDRESS_GROUP,
    EVERYWHERE,
    GROUP,
    PODS,
    RIGHTS,
    VERBS,
    group_of,
    verb_of,
)
from ipam.stores.base import OutcomeUnknown, Unreachable

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ipam.stores.apiserver import Api


class Forbidden(InvalidConfig):
    """The credentials do not allow a request (403)."""


class Unauthorized(InvalidConfig):
    """The server does not accept the credentials (401)."""


class NoNamespace(InvalidConfig):
    """The server has no such namespace."""


class Terminating(TryAgainLater):
    """The server is deleting the namespace."""


class Undefined(InvalidConfig):
    """The server does not know the resource."""


class Expired(TryAgainLater):
    """The server no longer keeps the list of which the next page was requested (410)."""


class Conflict(Exception):
    """The object exists already, has changed, or a test of the JSON patch has failed."""


class NotFound(Exception):
    """The object does not exist."""


class TooLarge(Exception):
    """The object is too large for the server, or the requested resourceVersion is newer than the server's cache."""


class Refusal:
    """An error reply; its attributes fill the placeholders in the texts of _REFUSALS."""

    def __init__(
        self, api: Api, status: int, body: bytes, method: str, resource: str, name: str, namespace: str
    ) -> None:
        try:
            self.said = codec.loads_reply(body)
            self.reason, self.message = (str(self.said.get(key) or "") for key in ("reason", "message"))
        except (ValueError, AttributeError):
            self.said, self.reason, self.message = {}, "", body[:100].decode("utf-8", "replace").strip()
        details = self.said.get("details")
        self.details: dict[str, Any] = details if isinstance(details, dict) else {}
        self.api = str(api)
        self.status = status
        self.name = name
        self.named = api.named()
        self.namespace = namespace
        self.resource = resource
        self.kind = f"{resource}.{group_of(resource)}".rstrip(".")
        self.where = f"{resource}/{name}" if name else resource
        self.verb = verb_of(method, name)
        self.short = self.message[:200]
        self.code = f"{status} {self.reason}".rstrip()
        own = group_of(resource) in (GROUP, ADDRESS_GROUP)
        self.crds = "apply conf/kubernetes/crds (`kubectl apply -f`), or " if own else ""
        self.place = " in all namespaces" if namespace == EVERYWHERE and resource != "nodes" else ""
        self.role = "pods: its ClusterRole" if resource == PODS else f"{self.kind} in namespace {namespace}: its Role"
        self.rights = RIGHTS.get(resource, "").replace(" ", ", ")
        self.is_known = self.reason == "NotFound" and bool(self.details.get("name"))
        self.is_of_plugins = self.verb in RIGHTS.get(resource, "").split() and namespace != EVERYWHERE
        causes = [str(c.get("reason")) for c in self.details.get("causes") or () if isinstance(c, dict)]
        self.is_too_large: bool = (
            status == 413 or "ResourceVersionTooLarge" in causes or any(sign in self.message for sign in _TOO_LARGE)
        )
        is_test = method == "PATCH" and "the server rejected our request" in self.message
        self.is_conflict: bool = status in (409, 412) or (status == 422 and is_test)


# messages of etcd, of its client, and of an API server before 1.18.6, which names no cause
_TOO_LARGE = ("request is too large", "larger than max", "Too large resource version")
_DOING = "{api} refuses to {doing} {where}"
_REFUSALS: tuple[tuple[int, Callable[[Refusal], object], type[Exception], str], ...] = (
    # status (0: any), further condition, error class, its text with attributes of a Refusal; the first match counts
    (404, lambda r: not r.is_known, Undefined, "{api} does not know {kind}: {crds}correct `server` in {named}"),
    (404, lambda r: r.name, NotFound, "{where}"),
    (
        404,
        lambda r: True,
        NoNamespace,
        "{api} has no namespace {namespace}: correct `namespace` of the current context in {named}, or create it",
    ),
    (410, lambda r: True, Expired, "{api} keeps no pages of so old a list: begin again"),
    (
        401,
        lambda r: True,
        Unauthorized,
        "{api} does not accept the credentials of {named} (401): they have expired or are wrong. See that the DaemonSet"
        " which writes that file runs on this node",
    ),
    (
        403,
        lambda r: not r.said,
        InvalidConfig,
        "{api} answers 403 to {doing} {where}: is `server` of {named} an API server's URL?",
    ),
    (
        403,
        lambda r: "being terminated" in r.message,
        Terminating,
        "namespace {namespace} of {api} is being deleted, and takes no new {resource}: create it again once it has gone, or"
        " name another in `namespace` of the current context in {named}",
    ),
    (
        403,
        lambda r: "quota" in r.message,
        TryAgainLater,
        "{api} forbids to {doing} {where}: raise the ResourceQuota of namespace {namespace}, or remove it: {short}",
    ),
    (
        403,
        lambda r: not r.is_of_plugins,
        Forbidden,
        "{api} forbids to {verb} {kind}{place}: {named} needs that right; the command takes another with --kubeconfig,"
        " such as an administrator's",
    ),
    (
        403,
        lambda r: True,
        Forbidden,
        "{api} forbids to {verb} {role} needs the verbs {rights} (conf/kubernetes/rbac.yaml). Credentials: {named}",
    ),
    (0, lambda r: r.is_conflict, Conflict, "{message}"),
    (0, lambda r: r.is_too_large, TooLarge, "{message}"),
    (
        0,
        lambda r: "metadata.name" in r.message and r.status < 500 and r.status != 429,
        InvalidConfig,
        _DOING
        + ": ipam.network_name stands before the name of every object, so it may have lowercase letters, digits, -"
        " and . only, and must begin and end with a letter or digit",
    ),
    (
        400,
        lambda r: "HTTPS server" in r.message,
        InvalidConfig,
        "{api} speaks TLS alone. Write https:// in {named}",
    ),
)


def refusal(
    api: Api, status: int, body: bytes, method: str, resource: str, name: str, namespace: str
) -> tuple[CniError, float]:
    """Return (the error to raise if no time is left for another attempt, the seconds of Retry-After or 0).

    Raises the error at once if another attempt would not help: Conflict, NotFound, Expired, TooLarge, OutcomeUnknown or
    another CniError.
    """
    read = Refusal(api, status, body, method, resource, name, namespace)
    words = {**vars(read), "doing": VERBS[method]}
    for code, fits, kind, told in _REFUSALS:
        if code in (0, status) and fits(read):
            text = told.format_map(words)
            raise kind(text, read.message) if issubclass(kind, CniError) else kind(text)
    if status != 429 and status < 500:
        raise InvalidConfig((_DOING + " ({code}): ").format_map(words) + read.message[:300])
    after = read.details.get("retryAfterSeconds")
    text = "{api} does not serve now ({status}) to {doing} {where}: {short}. Retry".format_map(words)
    if method != "GET" and status != 429 and not (status == 503 and after):
        raise OutcomeUnknown(text)  # the server may have carried out the request
    return (TryAgainLater if status == 429 else Unreachable)(text), after if isinstance(after, int) else 0
