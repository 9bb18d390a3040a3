"""Read the addresses that a pod prefers from its annotation."""

from __future__ import annotations

from cni.shared.log import Log
from cni.shared.spec.errors import CniError
from ipam.config import IpamConfig
from ipam.ranges import host_of
from ipam.stores.apiserver import Api, uid_of
from ipam.stores.apiserver.faults import NotFound
from ipam.stores.base import SHARED_SECONDS

_PREFERRED = "whereabouts.cni.cncf.io/preferred-ip"


def preferred(config: IpamConfig, pod: tuple[str, str, str], log: Log) -> list[tuple[int, int]]:
    """The addresses, (family, value), in the annotation of `pod` (namespace, name, uid), the most preferred first.

    Returns [] if the pod of this name now has another uid. If pod or annotation cannot be read, logs this and returns
    []. Some builds of whereabouts read one address from this annotation, and ignore an address that is not free.
    """
    api = Api(config.kubeconfig, min(SHARED_SECONDS, config.store_timeout))
    try:
        metadata = api.pod(*pod[:2])
    except NotFound:
        log.warning(f"there is no pod {pod[0]}/{pod[1]}: its annotation {_PREFERRED} is ignored")
        return []
    except CniError as fault:
        log.warning(f"annotation {_PREFERRED} is ignored: {fault.msg}")
        return []
    finally:
        api.close()
    if pod[2] and uid_of(metadata) != pod[2]:
        return []
    text = str((metadata.get("annotations") or {}).get(_PREFERRED) or "")
    try:
        return [host_of(part.strip()) for part in text.split(",") if part.strip()]
    except ValueError:
        log.warning(
            f'annotation {_PREFERRED} "{text[:100]}" of pod {pod[0]}/{pod[1]}: want addresses, separated by commas'
        )
        return []
