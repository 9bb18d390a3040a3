"""What the text around a block tells its reader to do, as shell lines before it, and what the block must have brought about."""

from typing import NamedTuple


class Scene(NamedTuple):
    """`before` and `after` are shell lines, and those of `after` fail when a thing is not as it should be; `said` is a pattern
    of the block's output; `names` is what stands for a placeholder of the block."""

    before: str = ""
    said: str = ""
    after: str = ""
    names: dict[str, str] = {}  # noqa: RUF012


NODE = {"NODE": "node-1"}
INSTALLED = "kubectl apply -k conf/kubernetes; kubectl -n railcni rollout status daemonset railcni"
REPLACED = f"sed -i 's/args: .install, /&--replace, /' conf/kubernetes/daemonset.yaml; {INSTALLED}"
HELLO = "kubectl apply -f conf/examples/hello-rdma.yaml; kubectl wait --for=condition=Ready pod/hello-rdma-1 pod/hello-rdma-2"
IMAGE = "kubectl -n railcni get daemonset railcni -o jsonpath='{..initContainers[0].image}' | grep -x"
ENDED = "kubectl get pods -o jsonpath='{.items[-1:].status.phase}' | grep -x"
STATUS = r"(?s)0\.1\.0.*(nothing is wrong|healthy|whole)"

LINK = r"(?ms)^\d+: net1@if\d+: <.*UP.*inet 192\.168\.111\.1/24 "

PUSHED = "ls '../registry/v2%railcni%manifests%0.1.0'"
FILES = "$DOCS_ROOT/tests/docs"
NOTHING_LEFT = """for kind in $(kubectl api-resources -o name | grep -v -x events); do
    ! kubectl get $kind -A -o name 2>/dev/null | grep -E 'railcni|addressleases|ippools' || exit 1
done"""  # Events end by themselves
USED = "kubectl -n kube-system get ippools 192.168.111.0-24 -o jsonpath='{.spec.allocations}' | grep -o podref | wc -l | grep -x"
HELD = "kubectl -n kube-system get addressleases -o jsonpath='{.items[*].spec.state}' | grep -o held | wc -l | grep -x"
RAILS = """
cp conf/examples/rails-8.yaml rails.yaml
railcni rails render rails.yaml | sed s/gpu-test/pod-1/ > made.yaml
kubectl apply -f made.yaml; kubectl wait --for=condition=Ready pod/pod-1"""
RAILS_POD = """
railcni rails render conf/examples/rails-8.yaml | sed -n '/^kind: Pod/,$p' | sed '1i apiVersion: v1
s/gpu-test/NAME/' | kubectl apply -f -; kubectl wait --for=condition=Ready pod/NAME"""
ENV = r"(?s)NCCL_IB_HCA==?mlx5_0:1,.*mlx5_7:1.*NCCL_SOCKET_IFNAME=="
PREFIXED = """
kubectl -n team get network-attachment-definitions rdma-net -o yaml > nad.yaml
sed 's/"\\(macvlan\\|whereabouts\\)"/"railcni-\\1"/g' nad.yaml | kubectl replace -f -"""
PLAIN = """
kubectl -n team get network-attachment-definitions rdma-net -o yaml > nad.yaml
sed 's/"railcni-/"/g' nad.yaml | kubectl replace -f -"""
POD = """
kubectl -n team apply -f - <<END
{apiVersion: v1, kind: Pod, metadata: {name: NAME, annotations: {k8s.v1.cni.cncf.io/networks: rdma-net}},
 spec: {containers: [{name: shell, image: 'busybox:1.36', command: [sleep, infinity]}]}}
END
kubectl -n team wait --for=condition=Ready pod/NAME"""
WHEREABOUTS = f"""
for name in macvlan host-device sriov rdma whereabouts; do
    printf '#!/bin/sh\\necho %s of Go\\n' $name > /opt/cni/bin/$name; chmod +x /opt/cni/bin/$name
done
mkdir -p /etc/cni/net.d/whereabouts.d
cp admin.kubeconfig /etc/cni/net.d/whereabouts.d/whereabouts.kubeconfig
cp conf/whereabouts.d/whereabouts.conf /etc/cni/net.d/whereabouts.d/whereabouts.conf
kubectl apply -f {FILES}/whereabouts.yaml -f {FILES}/team.yaml"""
REPLACING = (
    'args: [install, --root=/host, --plugin-dir=/opt/cni/bin, --replace, "--plugins=macvlan,host-device,whereabouts"]'
)
OF_GO = "for name in macvlan host-device sriov rdma whereabouts; do /opt/cni/bin/$name | grep 'of Go'; done"
OPERATORS = """
kubectl delete namespace railcni; kubectl create namespace railcni; kubectl create namespace nvidia-network-operator
kubectl delete --ignore-not-found -f conf/kubernetes/rbac.yaml -f conf/kubernetes/agent-rbac.yaml -f conf/kubernetes/admission.yaml -f conf/kubernetes/crds/addressleases.yaml
sed -n '/kind: IPPool/,/^---/p' $DOCS_ROOT/tests/docs/team.yaml |
    sed 's/kube-system/nvidia-network-operator/; s/^---//; 1i apiVersion: whereabouts.cni.cncf.io/v1alpha1' | kubectl apply -f -"""
AGENT = "kubectl -n railcni rollout status daemonset railcni"

# What is done on a page before its first block: where nothing is said, the page installs railcni itself.
FIRST = {
    "command": f"{INSTALLED}; {HELLO}", "security": INSTALLED, "examples": REPLACED, "install": INSTALLED,
    "models": INSTALLED, "migration": WHEREABOUTS, "rails": f"{REPLACED} {RAILS} {RAILS_POD.replace('NAME', 'pod-2')}",
    "troubleshooting": f"{REPLACED}; {HELLO} {RAILS} {RAILS_POD.replace('NAME', 'pod-2')}",
}  # fmt: skip
# The pages whose node has NICs with verbs devices.
RDMA = {"device-plugin", "dra", "examples", "rails", "rdma", "troubleshooting"}
# Before the blocks that build: what docs/release.md demands of the checkout, and the bundle of the other architecture.
AARCH64 = "railcni-0.1.0-linux-aarch64"
FIRST_TO_BUILD = f"""
printf '\\n[project.urls]\\nSource = "https://example.com/s"\\nDocumentation = "https://example.com/d"\\n' >> pyproject.toml
printf 'Downloads = "https://example.com/x"\\n' >> pyproject.toml
grep -q '^## 0.1.0' CHANGELOG.md || printf '# Changes\\n\\n## 0.1.0\\n\\nnew\\n' > CHANGELOG.md
mkdir -p {AARCH64}/bin; echo 0.1.0 > {AARCH64}/VERSION; echo '{{}}' > {AARCH64}/bill-of-materials.spdx.json
printf '\\177ELF\\2\\1\\1\\0\\0\\0\\0\\0\\0\\0\\0\\0\\2\\0\\267\\0' > {AARCH64}/bin/railcni; chmod +x {AARCH64}/bin/railcni
tar -czf {AARCH64}.tar.gz {AARCH64}"""
# By the page and a line of the block.
SCENES = {
    ("air-gapped", "make image"): Scene(
        after="ls build/railcni-0.1.0-linux-x86_64.tar.gz build/railcni-0.1.0-amd64.oci.tar"),
    ("air-gapped", "bin/railcni install"): Scene(
        before="cp build/railcni-0.1.0-linux-x86_64.tar.gz build/railcni-0.1.0-amd64.oci.tar .",
        after="CNI_COMMAND=VERSION /opt/cni/bin/railcni-macvlan | grep 1.1.0; /usr/local/bin/railcni status"),
    ("air-gapped", "PIP_NO_INDEX=1"): Scene(before="rm .venv", after="bin/railcni --version | grep -x 'railcni 0.1.0'"),
    ("command", "man -M"): Scene(said=r"(?s)railcni-ipam-leases - the leases.*complete .*-F _shtab_railcni railcni"),
    ("device-plugin", "--show"): Scene(before="cp conf/kubernetes/device-plugin/config.json device-plugin.json",
        said="rdma/hca_shared_devices_a"),
    ("device-plugin", "bin/railcni device-plugin --config device-plugin.json\n"): Scene(
        said="railcni device-plugin serves"),
    ("dra", "dra show"): Scene(said=r"(?s)rdma/hca_shared_devices_a .*kind: DeviceClass"),
    ("dranet", "railcni dranet-ipam"): Scene(said=r"/run/railcni/dranet\.sock"),
    ("device-plugin", "vfs plan"): Scene(
        before="""printf '{"virtualFunctions": [{"nicSelector": {"pfNames": ["ens2f0"]}, "numVfs": 8}]}' > vfs.json""",
        names={"FILE": "vfs.json"},
        said="ens2f0",
    ),
    ("device-plugin", "kubectl apply -k conf/kubernetes"): Scene(
        before="echo 'components: [device-plugin]' >> conf/kubernetes/kustomization.yaml",
        after="""until kubectl -n railcni logs -l app.kubernetes.io/name=railcni -c device-plugin --tail=-1 |
            grep rdma/hca_shared_devices_a; do sleep 0.2; done""",
    ),
    ("getting-started", "make image"): Scene(after=PUSHED),
    ("install", "make image"): Scene(
        after="ls build/railcni-0.1.0-linux-x86_64.tar.gz build/railcni-0.1.0-amd64.oci.tar"),
    ("leases", "ipam show"): Scene(names={"192.168.111.7": "192.168.111.1"},
        said=r"pod: +default/pod-1(?s:.*)nothing is wrong"),
    ("leases", "--to etcd:"): Scene(
        before=f"""
            {INSTALLED}; kubectl apply -f {FILES}/team.yaml
            mkdir -p one; printf 'c1\\r\\nnet1' > one/192.168.111.9
            railcni ipam migrate --from host-local:one --to file:/var/lib/cni/railcni --range 192.168.111.0/24
            timeout 60 etcd --data-dir=etcd >etcd.log 2>&1 & echo $! > etcd.pid
            until ETCDCTL_API=3 etcdctl endpoint health; do sleep 0.2; done""",
        names={"/path/kubeconfig": "admin.kubeconfig", "https://10.0.0.1:2379": "http://127.0.0.1:2379"},
        said="(?s)1 lease would be copied.*1 lease copied",
        after="ETCDCTL_API=3 etcdctl get --prefix / | grep 192.168.111; kill $(cat etcd.pid)",
    ),
    ("leases", "--from host-local"): Scene(
        before="mkdir -p /var/lib/cni/networks/rdma-net; printf 'c1\\r\\nnet1' > /var/lib/cni/networks/rdma-net/192.168.111.9",
        said="1 lease copied"),
    ("leases", "findmnt"): Scene(before="touch /run/netns/gone", names={"NAME": "gone"}, after="! ls /run/netns/gone"),
    ("performance", "make bench"): Scene(said=r"(?s)macvlan, addresses from a pool.*ADD.*\d"),
    ("rdma", "bin/railcni rdma --ibdev2netdev"): Scene(before="cp -a /etc etc; mount --bind etc /etc",
        said=r"(?s)mlx5_8 port 1 ==> ens2f0 \(Up\).*NCCL_IB_HCA==?mlx5_8:1.*fault: ib_uverbs.*192\.168\.111\.2",
        after="grep railcni.io/rdma.healthy=false /etc/kubernetes/node-feature-discovery/features.d/railcni"),
    ("release", "make release"): Scene(
        after="cd build/release; sha256sum --check SHA256SUMS; ls railcni-0.1.0.oci.tar railcni.yaml"),
    ("release", "skopeo copy --all"): Scene(after=f"{PUSHED}; grep -l arm64 ../registry/*"),
    ("migration", "--from host-local"): Scene(said=r"192\.168\.111\.9 "),
    ("migration", "--report before.json"): Scene(said=r"(?s)192\.168\.111\.0-24 .*nothing"),
    ("migration", "--replicas=0"): Scene(
        after="kubectl -n kube-system get deployment whereabouts-reconciler -o jsonpath={.spec.replicas} | grep -x 0"),
    ("migration", "-k conf/kubernetes"): Scene(
        before="sed -i 's/^            - agent$/&\\n            - --no-collect/' conf/kubernetes/daemonset.yaml",
        after=f"{OF_GO}; ls /opt/cni/bin/railcni-macvlan; kubectl get clusterrolebinding railcni-beside-whereabouts"),
    ("migration", "kubectl debug node/NODE"): Scene(names=NODE, said=STATUS, after=f"{ENDED} Succeeded"),
    ("migration", "delete daemonset whereabouts"): Scene(
        said=r"(?s)agent\] .*written file=.*/whereabouts\.kubeconfig",
        after=f"""
            grep token.of.railcni /etc/cni/net.d/whereabouts.d/whereabouts.kubeconfig
            {USED} 1; ! kubectl -n kube-system get daemonset whereabouts""",
    ),
    ("migration", "ipam show NAMESPACE/POD"): Scene(before=PREFIXED + POD.replace("NAME", "try-0"),
        names={"NAMESPACE/POD": "team/try-0"}, said=r"(?s)192\.168\.111\.2.*node-1.*nothing",
        after=f"{USED} 2; kubectl -n team delete pod try-0; {USED} 1"),
    ("migration", "railcni install --replace"): Scene(
        before=f"sed -i 's|args: .install, .*|{REPLACING}|' conf/kubernetes/daemonset.yaml",
        said=STATUS,
        after=f"""
            for name in macvlan host-device whereabouts; do readlink /opt/cni/bin/$name | grep railcni-bundle; done
            for name in sriov rdma; do /opt/cni/bin/$name | grep 'of Go'; done
            {INSTALLED} {PLAIN} {POD.replace("NAME", "web-1")}
            {USED} 2""",
    ),
    ("migration", "kubectl delete clusterrolebinding railcni-beside-whereabouts\n"): Scene(
        before=f"sed -i /--no-collect/d conf/kubernetes/daemonset.yaml; {INSTALLED}"),
    ("migration", "proxy/readyz"): Scene(names={"/POD:": "/$(kubectl -n railcni get pods -o name | cut -d/ -f2):"},
        said=r"(?s)nothing.*192\.168\.111\.0-24 .*node-1 +0\.1\.0\S+ +whole.*ok$"),
    ("migration", "railcni ipam flush"): Scene(after=f"! kubectl -n railcni get daemonset railcni; {USED} 2"),
    ("migration", "railcni uninstall "): Scene(after=f"{OF_GO}; ! ls /opt/cni/bin/railcni-macvlan"),
    ("migration", "rm -r /var/lib"): Scene(before=f"kubectl apply -f {FILES}/whereabouts.yaml", said="nothing",
        after="kubectl -n kube-system get deployment whereabouts-reconciler -o jsonpath={.spec.replicas} | grep -x 1"),
    ("migration", "--to addresslease:"): Scene(said="2 leases copied", after=f"{USED} 0; {HELD} 2"),
    ("migration", "--from addresslease:"): Scene(said="2 leases copied", after=f"{USED} 2; {HELD} 0"),
    ("migration", "> leases.yaml"): Scene(before=OPERATORS, said=r"192\.168\.111\.0-24 ",
        after="grep -c 'kind: IPPool$' leases.yaml | grep -x 2"),
    ("migration", "helm install"): Scene(
        after="until grep nvidia-network-operator /etc/cni/net.d/whereabouts.d/whereabouts.kubeconfig; do sleep 0.2; done"),
    ("command", "kubectl railcni status"): Scene(
        before="kubectl config set-context other --cluster=local --user=whereabouts",
        names={"node-7": "node-1", "team/train-0": "default/hello-rdma-1"},
        said=r"(?s)node-1 +0\.1\.0\S+ +whole +2.*verbs devices: none.*net1: macvlan on ens2f0.*192\.168\.111\.1 .*whole"),
    ("command", "kubectl railcni test"): Scene(names={"node-7": "node-1"},
        said=r"(?s)ping from node-1 +PASS .* 9000 bytes came back.*released +PASS"),
    ("getting-started", "kubectl debug node/NODE"): Scene(names=NODE,
        said="(?s)verbs devices: none.*verbs devices: none"),
    ("getting-started", "kubectl exec hello-rdma-1"): Scene(
        said=LINK + r".*\n192\.168\.111\.1 .*default/hello-rdma-1 "),
    ("README", "kubectl exec hello-rdma-1"): Scene(
        said=LINK + r".*\n192\.168\.111\.1 .*default/hello-rdma-1 .* 0% packet loss"),
    ("examples", "kubectl exec hello-rdma-1"): Scene(said=LINK),
    ("models", "kubectl kustomize"): Scene(
        names={"jsonpath='{.status.phase}'=Succeeded": "condition=Ready"},
        after="""
            railcni ipam show default/bw-server --kubeconfig admin.kubeconfig -n kube-system | grep 192.168.111.200
            railcni ipam show default/bw-client --kubeconfig admin.kubeconfig -n kube-system | grep 192.168.111.1""",
    ),
    ("examples", "rails check"): Scene(before=RAILS_POD.replace("NAME", "nccl-tests-worker-0"),
        names={"--peer 6": "--peer 1"}, said=ENV),
    ("helm", "helm install"): Scene(said="STATUS: deployed", after=AGENT),
    ("helm", "devicePlugin.enabled"): Scene(
        before="""printf 'devicePlugin: {config: {configList: [{resourceName: a, selectors: {ifNames: [ens2f0]}}]}}' > devices.yaml""",
        said="has been upgraded",
        after="kubectl -n railcni get daemonset railcni -o jsonpath='{..containers[*].image}' | grep /railcni-device-plugin:0.1.0",
    ),
    ("rails", "rails check default/pod-1"): Scene(said=r"(?s)gpu-rail-7.*eth_r7.*default/pod-1"),
    ("troubleshooting", "kubectl debug node/NODE"): Scene(names=NODE, said="fault: ib_uverbs: not loaded"),
    ("troubleshooting", "describe pods"): Scene(said=r"(?s)Init Containers:.*node-1 +0\.1\.0\S+ +whole"),
    ("troubleshooting", "logs POD"): Scene(
        before="""
            kubectl -n kube-system run multus --image=multus
            sed '/^---/,$d; s/9000/1500/; s/hello-rdma/small/' conf/examples/hello-rdma.yaml | kubectl apply -f -
            kubectl run small --image=web --annotations=k8s.v1.cni.cncf.io/networks=small
            until kubectl -n kube-system logs multus | grep -q .; do sleep 0.2; done""",
        names={"POD": "multus"},
        said=r"\[warning\] .*RoCE MTU",
    ),
    ("troubleshooting", "rails check"): Scene(names={"NAMESPACE/POD": "default/pod-1", "OTHER-POD": "default/pod-2"},
        said=ENV),
    ("install", "kubectl railcni status"): Scene(names=NODE, said=STATUS, after=f"{ENDED} Succeeded"),
    ("install", "rollout undo"): Scene(before="sed -i 's/newTag: .*/newTag: 0.2.0/' conf/kubernetes/kustomization.yaml",
        after=f"kubectl -n railcni rollout status daemonset railcni; {IMAGE} registry.example.com/railcni:0.1.0"),
    ("install", "helm upgrade"): Scene(
        before="""
            kubectl delete -k conf/kubernetes --ignore-not-found
            kubectl create namespace railcni
            helm install railcni conf/charts/railcni -n railcni --set image.repository=registry.example.com/railcni
            printf 'image: {repository: registry.example.com/railcni, tag: 0.2.0}' > values.yaml""",
        said="(?s)has been upgraded.*Rollback was a success",
        after=f"{IMAGE} registry.example.com/railcni:0.1.0; kubectl -n railcni rollout status daemonset railcni",
    ),
    ("install", "uninstall --root /host"): Scene(names=NODE, before=f"helm uninstall railcni -n railcni; {INSTALLED}",
        after=f'[ -z "$(ls /opt/cni/bin)" ]; ! kubectl get namespace railcni; {NOTHING_LEFT}'),
}  # fmt: skip


def of(page: str, block: str) -> Scene:
    """The scene of a block: of its whole text, or of a part of it."""
    if (page, block) in SCENES:
        return SCENES[page, block]
    found = [scene for (stem, words), scene in SCENES.items() if stem == page and words in block and words[-1] != "\n"]
    assert len(found) <= 1, block
    return found[0] if found else Scene()
