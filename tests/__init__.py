"""The tests: unit and property by pure functions, the rest on a real kernel in namespaces of their own."""
