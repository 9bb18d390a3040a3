"""The file of compiled modules from which the executables import: pack.py writes it, a launcher first runs packed.py."""
