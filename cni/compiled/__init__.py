"""The one file of compiled modules that the executables import from: pack.py writes it, packed.py is what a launcher runs first."""
