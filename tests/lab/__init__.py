"""The lab: railcni on a real RDMA and SR-IOV kernel, in QEMU, on a machine that has neither.

`make lab` (tests.lab.__main__) boots each machine of tests/lab/machines.py once and runs in it, by pytest, all files
tests/lab/test_*.py whose constant MACHINES names it. So a test of the lab is an ordinary test in an ordinary file:

    MACHINES = ("roce",)

    def test_a_pod_gets_a_gid(machine, say):        # the guest as a tests.node.Node; lines for the report
        machine.dummy("ens2f0", mtu=9000)
        machine.soft_roce("mlx5_0", "ens2f0")
        pod = machine.pod("pod1")
        machine.cni("macvlan", "ADD", CONFIG, netns=pod).succeeded()
        assert any(link == "net1" for _, _, link in gids("mlx5_0").values())

It runs in the guest, as root, in the kernel's first network namespace, and may do everything there: load modules, move
devices, set sysctls. `machine` takes away pods, state, soft verbs devices and virtual links at the end; what else a test
changes (sysctls, sriov_numvfs, modules) it puts back itself. Checkout and .venv are at the same paths as outside; what
is written goes when the guest ends, save what is written to /out. Fixtures of tests/conftest.py are not there.

Python is some 15 times slower in a guest without KVM: few processes, no timings, a test a claim. Names are sentences.
A test of which a part takes minutes has the marker `long`: `make lab ARGS=--long`.
"""
