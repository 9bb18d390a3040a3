"""railcni rails: the networks of a group of NICs, made from one file; checked in a pod; drawn for a node."""
