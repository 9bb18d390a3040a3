"""The tests: unit by pure functions, the rest on a real kernel in namespaces of their own."""
