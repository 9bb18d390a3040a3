"""The pack, one file of compiled modules. pack.py writes the pack, and a launcher runs packed.py to import from it."""
