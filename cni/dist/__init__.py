"""Build a bundle, which runs on a host without Python: `make bundle`. The bundle does not contain this package."""
