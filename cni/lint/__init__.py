"""The lint: find the faults of networks in files, and return the faults as data. All faults of a document are found at
once, but of its syntax errors only the first. Modules:

    file       files and directories, and each document of a file, as cni.documents reads it
    network    a conflist, a single configuration, a chain, a NAD
    plugin     one plugin, by the keys and checks of the plugin itself
    addresses  the `ipam` block of a plugin
    objects    Kubernetes objects other than NADs; nvidia renders the NADs of NVIDIA's operators
    schema     the JSON Schema of the plugins' configurations
"""
