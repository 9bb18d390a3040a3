"""The command executed as a person does, each of its verbs once; other tests fork it: tests/command.py."""

from tests.node import COMMAND, GO_PLUGINS, Node

IPAM = {"type": "whereabouts", "datastore": "file", "range": "192.168.111.0/24"}
MACVLAN = {"type": "macvlan", "master": "ens2f0", "ipam": IPAM}
NETWORK = {"cniVersion": "1.1.0", "name": "rail", "plugins": [MACVLAN]}


def test_every_verb_does_its_work_when_it_is_executed(node: Node) -> None:
    node.master()
    pod = node.pod()
    node.write("/etc/cni/net.d/rail.conflist", NETWORK)

    def say(*argv: str, codes: tuple[int, ...] = (0,)) -> str:
        env = {"PATH": "/usr/bin:/bin", "CNI_PATH": f"{node.executables}:{GO_PLUGINS}"}
        done = node.run([*COMMAND, *argv], env=env)
        assert done.returncode in codes and b"Traceback" not in done.stderr, (argv, done.stdout, done.stderr)
        return (done.stdout + done.stderr).decode()

    assert "192.168.111.1/24" in say("attach", "rail", pod.name)
    assert pod.view.link("eth0").texts == ["192.168.111.1/24"]
    assert "as it was attached" in say("check", "rail", pod.name)
    assert "192.168.111.1" in say("attachments")
    assert "192.168.111.1" in say("ipam", "leases")
    assert "kept" in say("gc", "rail")
    assert "ready" in say("status", "rail")
    assert "detached" in say("detach", "rail", pod.name)
    assert "no faults" in say("nad", "lint", "/etc/cni/net.d")
    say("rdma")
    say("rails", "show")
    assert "healthy: " in say("doctor", codes=(0, 1))
    say("support-bundle", "--file", "/run/bundle.tar.gz")
    assert node.path("/run/bundle.tar.gz").stat().st_size > 0
    assert node.leftovers() == []
