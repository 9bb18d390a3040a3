"""The command `railcni`, for people. The executables that a runtime calls load nothing from this package."""
