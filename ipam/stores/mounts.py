"""Which file system a file lies on: file locks and fsync must mean there what they mean on a local disk."""

from __future__ import annotations

import posix

from cni.kernel import files

MOUNTINFO = "/proc/self/mountinfo"
_REMOTE = frozenset(
    ("9p", "afs", "ceph", "cifs", "fuse", "fuseblk", "lustre", "nfs", "nfs4", "smb3", "smbfs", "virtiofs")
)


def remote_type(fd: int) -> str:
    """The type of the file system that the open file `fd` lies on, when other machines may share it; else ""."""
    for line in files.read_whole(f"/proc/self/fdinfo/{fd}").split(b"\n"):
        key, _, value = line.partition(b":")
        if key == b"mnt_id":
            return find_remote(value.strip(), files.read_whole(MOUNTINFO))
    return ""


def find_remote(mount_id: bytes, mountinfo: bytes) -> str:
    """As `remote_type`, for the mount with this number in a text of the form that proc_pid_mountinfo(5) describes."""
    for line in mountinfo.split(b"\n"):
        if line.startswith(mount_id + b" "):
            kind = line.partition(b" - ")[2].partition(b" ")[0].decode("utf-8", "replace")
            return kind if kind.partition(".")[0] in _REMOTE else ""
    return ""


def may_be_remote(status: posix.stat_result) -> bool:
    """Whether the file's device is none of the local block devices: cheap, so that most files need no look at mounts."""
    return posix.major(status.st_dev) == 0
