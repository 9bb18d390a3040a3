"""The pack, one file of compiled modules: pack.py writes it, and a launcher runs packed.py to import from it."""
