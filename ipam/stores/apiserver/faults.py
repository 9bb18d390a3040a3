"""The error replies of an API server as exceptions, each with its remedy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cni.shared.spec import codec
from cni.shared.spec.errors import CniError, InvalidConfig, TryAgainLater
from ipam.stores.apiserver.resources import ADDRESS_GROUP, EVERYWHERE, GROUP, PODS, RIGHTS, VERBS, group_of, verb_of
from ipam.stores.base import Denied, OutcomeUnknown, Unreachable

if TYPE_CHECKING:
    from ipam.stores.apiserver import Api  # it imports this module

# messages of etcd, of its client, and of an API server before 1.18.6, which names no cause
_TOO_LARGE = ("request is too large", "larger than max", "Too large resource version")


class Forbidden(Denied):
    """The credentials do not allow a request (403)."""


class Unauthorized(Denied):
    """The server does not accept the credentials (401)."""


class NoNamespace(InvalidConfig):
    """The server has no such namespace."""


class Terminating(TryAgainLater):
    """The server is deleting the namespace."""


class Undefined(InvalidConfig):
    """The server does not know the resource."""


class Expired(TryAgainLater):
    """The server no longer keeps the list whose next page was requested (410)."""


class Conflict(Exception):
    """The object exists already, has changed, or a test of the JSON patch has failed."""


class NotFound(Exception):
    """The object does not exist."""


class TooLarge(Exception):
    """The object is too large for the server, or the requested resourceVersion is newer than the server's cache."""


def refusal(
    api: Api, status: int, body: bytes, method: str, resource: str, name: str, namespace: str
) -> tuple[CniError, float]:
    """Return (the error to raise if no time is left for another attempt, the seconds of Retry-After or 0).

    If another attempt would not help, raises the error at once: Conflict, NotFound, Expired, TooLarge, OutcomeUnknown
    or another CniError.
    """
    is_status, reason, message, details = _parts(body)
    where = f"{resource}/{name}" if name else resource
    doing, what = VERBS[method], f"{resource}.{group_of(resource)}".rstrip(".")
    refuses = f"{api} refuses to {doing} {where}"
    causes = [str(c.get("reason")) for c in details.get("causes") or () if isinstance(c, dict)]
    is_test = method == "PATCH" and "the server rejected our request" in message
    if status == 404 and not (reason == "NotFound" and details.get("name")):
        own = group_of(resource) in (GROUP, ADDRESS_GROUP)
        crds = "apply conf/kubernetes/crds (`kubectl apply -f`), or " if own else ""
        raise Undefined(f"{api} does not know {what}: {crds}correct `server` in {api.named()}", message)
    if status == 404 and name:
        raise NotFound(where)
    if status == 404:
        raise NoNamespace(
            f"{api} has no namespace {namespace}: correct `namespace` of the current context in {api.named()}, or create it",
            message,
        )
    if status == 410:
        raise Expired(f"{api} keeps no pages of so old a list: begin again", message)
    if status == 401:
        raise Unauthorized(
            f"{api} does not accept the credentials of {api.named()} (401): they have expired or are wrong. See that the"
            " DaemonSet which writes that file runs on this node",
            message,
        )
    if status == 403:
        raise _forbidden(api, is_status, message, f"{doing} {where}", verb_of(method, name), resource, namespace)
    if status in (409, 412) or (status == 422 and is_test):
        raise Conflict(message)
    if status == 413 or "ResourceVersionTooLarge" in causes or any(sign in message for sign in _TOO_LARGE):
        raise TooLarge(message)
    if status != 429 and status < 500:
        if "metadata.name" in message:
            raise InvalidConfig(
                f"{refuses}: ipam.network_name stands before the name of every object, so it may have lowercase letters,"
                " digits, - and . only, and must begin and end with a letter or digit",
                message,
            )
        if status == 400 and "HTTPS server" in message:
            raise InvalidConfig(f"{api} speaks TLS alone. Write https:// in {api.named()}", message)
        raise InvalidConfig(f"{refuses} ({f'{status} {reason}'.rstrip()}): {message[:300]}")
    after = details.get("retryAfterSeconds")
    text = f"{api} does not serve now ({status}) to {doing} {where}: {message[:200]}. Retry"
    if method != "GET" and status != 429 and not (status == 503 and after):
        raise OutcomeUnknown(text)  # the server may have carried out the request
    return (TryAgainLater if status == 429 else Unreachable)(text), after if isinstance(after, int) else 0


def _forbidden(
    api: Api, is_status: bool, message: str, doing: str, verb: str, resource: str, namespace: str
) -> CniError:
    """The error for a reply with status 403: a missing right, or another cause that the server names."""
    if not is_status:
        return InvalidConfig(
            f"{api} answers 403 to {doing}: is `server` of {api.named()} an API server's URL?", message
        )
    if "being terminated" in message:
        return Terminating(
            f"namespace {namespace} of {api} is being deleted, and takes no new {resource}: create it again once it has gone,"
            f" or name another in `namespace` of the current context in {api.named()}",
            message,
        )
    if "quota" in message:
        return TryAgainLater(
            f"{api} forbids to {doing}: raise the ResourceQuota of namespace {namespace}, or remove it: {message[:200]}",
            message,
        )
    return right_missing(api, verb, resource, namespace, message)


def right_missing(api: Api, verb: str, resource: str, namespace: str, message: str = "") -> Forbidden:
    """The error for credentials that lack the right `verb` on `resource`. `message` is the server's text."""
    what, rights = f"{resource}.{group_of(resource)}".rstrip("."), RIGHTS.get(resource, "").split()
    if verb not in rights or namespace == EVERYWHERE:
        place = " in all namespaces" if namespace == EVERYWHERE and resource != "nodes" else ""
        return Forbidden(
            f"{api} forbids to {verb} {what}{place}: {api.named()} needs that right; the command takes another with"
            " --kubeconfig, such as an administrator's",
            message,
        )
    role = "pods: its ClusterRole" if resource == PODS else f"{what} in namespace {namespace}: its Role"
    return Forbidden(
        f"{api} forbids to {verb} {role} needs the verbs {', '.join(rights)} (conf/kubernetes/rbac.yaml)."
        f" Credentials: {api.named()}",
        message,
    )


def _parts(body: bytes) -> tuple[bool, str, str, dict[str, Any]]:
    """(whether `body` is a Status object, reason, message, details). If it is none, the message is its first bytes."""
    try:
        said = codec.loads_reply(body)
        reason, message, details = (said.get(key) or "" for key in ("reason", "message", "details"))
        return bool(said), str(reason), str(message), details if isinstance(details, dict) else {}
    except (ValueError, AttributeError):
        return False, "", body[:100].decode("utf-8", "replace").strip(), {}
