"""The link plugins, and the entry of all executables. `main` answers VERSION without the import of another module."""

from __future__ import annotations

import os

from cni import VERSION

_VERSION_REPLY = (
    b'{"cniVersion": "1.1.0", "supportedVersions": ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"]}\n'
)


def main(plugin: str) -> int:
    """Serve a call of the executable `plugin`. Returns the exit status."""
    command = os.environb.get(b"CNI_COMMAND")
    if command == b"VERSION":
        os.write(1, _VERSION_REPLY)
        return 0
    if not command:
        about = f"CNI plugin {plugin} of railcni {VERSION}; CNI spec 0.1.0 to 1.1.0. A container runtime runs it with CNI_COMMAND set; people use `railcni`.\n"
        os.write(2, about.encode())
        return 0
    from cni.link import run  # VERSION needs no other module

    return run.main(plugin)
