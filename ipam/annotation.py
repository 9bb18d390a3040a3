"""The pod's annotation with its preferred addresses, which fails no attachment when they cannot be given.

Some builds of whereabouts read the same annotation: one address, which is given if it is free, and ignored if not.
"""

from __future__ import annotations

from cni.shared.spec.errors import CniError
from ipam.ranges import parse_address
from ipam.stores.apiserver import Api
from ipam.stores.apiserver.faults import Gone

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cni.shared.log import Log

PREFERRED = "whereabouts.cni.cncf.io/preferred-ip"


def preferred(kubeconfig: str, pod: tuple[str, str, str], seconds: float, log: Log) -> list[tuple[int, int]]:
    """The preferred addresses, (family, value), of the pod (namespace, name, uid), the best first.

    Empty when the pod cannot be read within `seconds` or the annotation is no list of addresses, with a line in the log;
    and when the pod of that name has another uid.
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
