"""Calls to plugins, as a container runtime makes them: the executables, libcni's cache, the steps of a conflist."""
