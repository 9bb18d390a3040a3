"""containerd and runc of this machine as a node's runtime, called over CRI as kubelet does, with our plugins as its CNI."""
