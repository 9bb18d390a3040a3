"""NetworkAttachmentDefinitions of a real API server."""

import time

from httpx2 import HTTPStatusError
from lightkube import Client
from lightkube.core.exceptions import ApiError
from lightkube.generic_resource import create_namespaced_resource
from lightkube.resources.apiextensions_v1 import CustomResourceDefinition

from tests.stores.kubernetes_core import MULTUS, NAD_DEFINITION, NADS

_SECONDS = 30.0

Nad = create_namespaced_resource(MULTUS, "v1", "NetworkAttachmentDefinition", NADS)


def define(client: Client) -> None:
    """Make the definition of NetworkAttachmentDefinition where the cluster has none, and wait until it is served."""
    try:
        client.create(CustomResourceDefinition.from_dict(NAD_DEFINITION))
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
