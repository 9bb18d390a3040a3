"""Network namespaces without a name, as for the tests of the kernel's code."""

from tests.oracles.conftest import namespaces, rtnl

__all__ = ["namespaces", "rtnl"]
