"""The CNI protocol, without I/O: messages, versions, errors, requests (spec 0.1.0 to 1.1.0)."""
