"""How a bundle is built, which runs on a host without Python: `make bundle`. No part of the bundle itself."""
