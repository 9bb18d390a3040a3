"""What an API server means by a status that is no success: the errors of ipam.stores.kubernetes_api, with their remedies."""

from __future__ import annotations

from cni.spec import codec
from cni.spec.errors import CniError, InvalidConfig, TryAgainLater
from ipam.stores.base import Unreachable
from ipam.stores.kubernetes_api import (
    PODS,
    RIGHTS,
    VERBS,
    Conflict,
    Expired,
    Forbidden,
    Gone,
    Open,
    TooLarge,
    group_of,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ipam.stores.kubernetes_api import Api


class Unauthorized(InvalidConfig):
    """The server does not accept the credentials (401)."""


def read(api: Api, status: int, body: bytes, method: str, resource: str, name: str) -> tuple[CniError, float]:
    """(the error to raise when there is no time for another attempt, the seconds that the server asks to wait for).

    What no attempt would mend is raised at once: Conflict, Gone, Expired, TooLarge, Open, CniError.
    """
    try:
        said = codec.loads(body)
        reason, message = str(said.get("reason") or ""), str(said.get("message") or "")
    except (ValueError, AttributeError):
        reason, message, said = "", body[:100].decode("utf-8", "replace").strip(), {}
    where = f"{resource}/{name}" if name else resource
    if status == 404:
        if reason == "NotFound" and isinstance(said.get("details"), dict) and said["details"].get("name"):
            if name:
                raise Gone(where)
            raise InvalidConfig(
                f"{api} has no namespace {api.access.namespace}: correct `namespace` of the current context in"
                f" {api.named()}, or create it"
            )
        raise InvalidConfig(
            f"{api} does not know {resource}.{group_of(resource)}: apply conf/kubernetes/crds (`kubectl apply -f`), or correct"
            f" `server` in {api.named()}"
        )
    if status == 410:
        raise Expired
    if status == 401:
        raise Unauthorized(
            f"{api} does not accept the credentials of {api.named()} (401): they have expired or are wrong. See"
            " that the DaemonSet which writes that file runs on this node"
        )
    if status == 403:
        namespace = api.access.namespace
        if "being terminated" in message:
            raise TryAgainLater(
                f"namespace {namespace} of {api} is being deleted, and takes no new {resource}: create it anew once it"
                f" has gone, or name another in `namespace` of the current context in {api.named()}",
                message,
            )
        if "quota" in message:
            raise TryAgainLater(
                f"{api} forbids to {VERBS[method]} {where}: raise the ResourceQuota of namespace {namespace}, or"
                f" remove it: {message[:200]}",
                message,
            )
        verb = "list" if method == "GET" and not name else VERBS[method]
        where = f"{resource}.{group_of(resource)} in namespace {namespace}: its Role"
        what = "pods: its ClusterRole" if resource == PODS else where
        raise Forbidden(
            f"{api} forbids to {verb} {what} needs the verbs {', '.join(RIGHTS[resource].split())}"
            f" (conf/kubernetes/rbac.yaml). Credentials: {api.named()}",
            message,
        )
    if status in (409, 412) or (status == 422 and method == "PATCH" and "the server rejected our request" in message):
        raise Conflict(message)
    if status == 413 or "too large" in message or "larger than max" in message or "limit is 3145728" in message:
        raise TooLarge(message)
    if status == 429 or status >= 500:
        details = said.get("details")
        after = details.get("retryAfterSeconds") if isinstance(details, dict) else None
        failure = TryAgainLater if status == 429 else Unreachable
        fault = failure(f"{api} does not serve now ({status}) to {VERBS[method]} {where}: {message[:200]}. Retry")
        if method != "GET" and status != 429 and not (status == 503 and after):
            raise Open(fault.msg)  # it may have been carried out
        return fault, after if isinstance(after, int) else 0
    if "metadata.name" in message:
        raise InvalidConfig(
            f"{api} refuses to {VERBS[method]} {where}: ipam.network_name stands before the name of every object, so it"
            " may have lowercase letters, digits, - and . only, and must begin and end with a letter or digit",
            message,
        )
    if status == 400 and not api.access.tls and "HTTPS server" in message:
        raise InvalidConfig(f"{api} speaks TLS alone. Write https:// in {api.named()}", message)
    reason = f"{status} {reason}".rstrip()
    raise InvalidConfig(f"{api} refuses to {VERBS[method]} {where} ({reason}): {message[:300]}")
