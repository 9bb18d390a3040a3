"""kubelet's gRPC services. The files *_pb2* are generated from the .proto files beside them, and are not edited: python
-m grpc_tools.protoc -I. --python_out=. --pyi_out=. cni/resources/kubelet/*.proto"""
