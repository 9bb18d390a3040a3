"""The pack: one file of compiled modules. pack.py writes the pack; packed.py imports modules from it in a process."""
