"""The pack, one file of compiled modules. pack.py writes the pack; an executable imports from the pack by packed.py."""
