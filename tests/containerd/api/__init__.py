"""The Container Runtime Interface, and the list of pods' devices of kubelet. The files *_pb2* are generated from the .proto
files beside them, and are not edited:

python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. tests/containerd/api/*.proto
"""
