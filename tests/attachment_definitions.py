"""NetworkAttachmentDefinitions of a real API server."""

import time

from httpx2 import HTTPStatusError
from lightkube import Client
from lightkube.core.exceptions import ApiError
from lightkube.generic_resource import create_namespaced_resource
from lightkube.resources.apiextensions_v1 import CustomResourceDefinition

_GROUP, _KIND, _PLURAL = "k8s.cni.cncf.io", "NetworkAttachmentDefinition", "network-attachment-definitions"
_SECONDS = 30.0

Nad = create_namespaced_resource(_GROUP, "v1", _KIND, _PLURAL)


def define(client: Client) -> None:
    """Make the definition of NetworkAttachmentDefinition where the cluster has none, and wait until it is served."""
    config = {"type": "object", "properties": {"config": {"type": "string"}}}
    schema = {"openAPIV3Schema": {"type": "object", "properties": {"spec": config}}}
    version = {"name": "v1", "served": True, "storage": True, "schema": schema}
    names = {"plural": _PLURAL, "singular": _KIND.lower(), "kind": _KIND}
    spec = {"group": _GROUP, "scope": "Namespaced", "names": names, "versions": [version]}
    try:
        client.create(CustomResourceDefinition.from_dict({"metadata": {"name": f"{_PLURAL}.{_GROUP}"}, "spec": spec}))
    except ApiError as error:
        if error.status.code != 409:
            raise
    deadline = time.monotonic() + _SECONDS
    while True:
        try:
            list(client.list(Nad, namespace="default"))
            return
        except HTTPStatusError:  # an ApiError, or a 404 without a Status
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
