"""railcni rails: renders the networks of a group of NICs (rails), checks a pod's rails, and shows a node's NICs."""
