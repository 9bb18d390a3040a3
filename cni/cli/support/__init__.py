"""One file for who is to help from afar: what is gathered, what of it is secret, how it is packed."""
