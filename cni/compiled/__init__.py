"""The file of compiled modules from which executables import: pack.py writes it, a launcher first runs packed.py."""
