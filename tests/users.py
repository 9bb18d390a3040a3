"""Another user than root, for tests of what that user may not do. Tests take one by the fixture `another_user`.

A clone below /root, or in a directory of mktemp, is closed to other users: what such a test needs of the clone it loads
before, or it skips with the reason. .ci/run runs all tests with the fixture from such a place, by the marker
`another_user`.
"""

import os
import pkgutil
from importlib import import_module

PACKAGES = ("cni.cli", "cni.link.features", "cni.shared.kernel", "cni.link.plugins", "cni.shared.spec", "ipam")


class AnotherUser:
    """`with another_user:` makes this process another user's; what is run by way of `prefix` is that user's, too."""

    ID = 65534
    prefix = ("setpriv", f"--reuid={ID}", f"--regid={ID}", "--clear-groups")

    def __enter__(self) -> None:
        os.seteuid(self.ID)

    def __exit__(self, *_: object) -> None:
        os.seteuid(0)


def import_all() -> None:
    """Import the modules that a test may load in its course."""
    for name in PACKAGES:
        for module in pkgutil.walk_packages(import_module(name).__path__, f"{name}."):
            import_module(module.name)
