"""How the project is delivered: a bundle that runs on a host without Python, and an image that installs it.

Run while building only (`make bundle`, `make image`: `python -m cni.dist`), and no part of the bundle.
"""
