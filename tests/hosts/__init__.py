"""The matrix: hosts as administrators run them x plugins x ways in which an attachment ends.

Each cell makes a host (scenes.py), attaches one of its devices, ends that in one way (endings.py), and compares a dump of
the whole host before and after (dump.py). The two must be equal, or the difference must be one that the product's own
table of attributes names as lost (table.py). A cell is named SCENE/PLUGIN/ENDING.

`make test` runs a covering sample (cells.py), `make long` every cell that this kernel can have, and the lab those that
need another kernel (tests/lab/test_hosts.py, tests/lab/test_hosts_vf.py).
"""
