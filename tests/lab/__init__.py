"""The lab: railcni on a real RDMA and SR-IOV kernel, in QEMU, on a machine that has neither.

`make lab` boots each machine of tests/lab/machines.py once and runs in it, by pytest, the files test_*.py whose constant
MACHINES names it. A test runs as root in the kernel's first network namespace and may do everything there; `machine`, the
guest as a tests.node.Node, takes away pods, state, soft verbs devices and virtual links at the end. What else a test changes
(sysctls, sriov_numvfs, modules) it puts back. What is written goes when the guest ends, save /out. Fixtures of
tests/conftest.py are not there. Python is some 15 times slower without KVM: few processes, no timings, a test a claim.
A test of which a part takes minutes has the marker `long`: `make lab ARGS=--long`."""
