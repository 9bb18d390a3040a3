"""The pod's annotation that names the addresses that it would like to have: a preference, which fails no attachment.

Some builds of whereabouts know the annotation: one address, which is given if it is free, and passed over if not.
"""

from __future__ import annotations

from cni.spec.errors import CniError
from ipam.ranges import parse_address
from ipam.stores.kubernetes_api import Api, Gone

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cni.log import Log

PREFERRED = "whereabouts.cni.cncf.io/preferred-ip"


def preferred(kubeconfig: str, pod: tuple[str, str, str], seconds: float, log: Log) -> list[tuple[int, int]]:
    """The addresses, (family, value), that the pod (namespace, name, uid) would like to have, the best first.

    None, and a line in the log, when the pod cannot be read within `seconds`, when it is another pod of that name, or
    when the annotation is no list of addresses.
    """
    api = Api(kubeconfig, seconds)
    try:
        metadata = api.pod(*pod[:2])
    except Gone:
        log.warning(f"there is no pod {pod[0]}/{pod[1]}: its annotation {PREFERRED} is passed over")
        return []
    except CniError as fault:
        log.warning(f"annotation {PREFERRED} is passed over: {fault.msg}")
        return []
    finally:
        api.close()
    if pod[2] and metadata.get("uid") != pod[2]:
        return []
    text = str((metadata.get("annotations") or {}).get(PREFERRED) or "")
    try:
        return [parse_address(part.strip().partition("/")[0]) for part in text.split(",") if part.strip()]
    except ValueError:
        log.warning(
            f'annotation {PREFERRED} "{text[:100]}" of pod {pod[0]}/{pod[1]}: want addresses, separated by commas'
        )
        return []
