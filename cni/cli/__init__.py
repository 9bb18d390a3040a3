"""The command `railcni`, for people. Nothing here is ever loaded by the executables that a runtime calls."""
