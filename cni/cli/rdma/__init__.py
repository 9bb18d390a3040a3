"""`railcni rdma`: the verbs devices of this node, what they belong to, and who uses their GIDs. It changes nothing."""
