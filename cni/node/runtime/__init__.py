"""Calls of plugins, as a container runtime makes them: executables, libcni's cache, the steps of a list."""
