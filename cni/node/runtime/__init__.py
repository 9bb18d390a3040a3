"""Calls to plugins, as a container runtime makes them: the executables, libcni's cache, the steps of a conflist."""

import os

ROOT = os.path.abspath(__file__).rpartition("/cni/")[0]
PLUGIN_DIRECTORIES = (os.path.join(ROOT, "bin"), "/opt/cni/bin", "/usr/lib/cni")
