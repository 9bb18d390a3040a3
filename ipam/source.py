"""Choose the source of each key's value: the `ipam` block, otherwise the flat file (whereabouts.conf).

The flat file gives the values of keys that the block leaves out, also of keys inside `dns` and `kubernetes`
(whereabouts, pkg/config, GetFlatIPAM and the lines after its call).

The author of a network must not use credentials that only the administrator can read, and must not learn about hosts
that the node's policy does not allow. So a block that names a store of its own

- must have all keys of etcd (server, prefix and credentials) if one of them differs from the flat file. A kubeconfig
  has server and credentials in one file, so it needs no other key;
- may name only files below `configRoots` of the node's policy, and etcd hosts in `storeHosts` of the policy.

`Source.borrowed` has the faults of a block that breaks these rules.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cni.shared import policy
from cni.shared.config import Fault, Key, misspelt
from cni.shared.kernel import files as kernel_files
from cni.shared.kernel import node
from cni.shared.log import LEVELS
from cni.shared.spec import codec
from cni.shared.spec.errors import IoFailure
from ipam import stores
from ipam.keys import DATASTORES, ETCD, NESTED, NOT_FROM_FLAT_FILE, ROOTS, SPELLED

PATHS = (
    "/etc/kubernetes/cni/net.d/whereabouts.d/whereabouts.conf",
    "/etc/cni/net.d/whereabouts.d/whereabouts.conf",
    "/host/etc/cni/net.d/whereabouts.d/whereabouts.conf",
    "/host/etc/kubernetes/cni/net.d/whereabouts.d/whereabouts.conf",
)
"""The paths of the flat file; the first that exists is used."""

_LIMIT = 1 << 20  # bytes; a network's author may choose the flat file, so the file may be a device or endless
_FORMER_CONFIG_ROOTS = ("/etc/cni", "/etc/kubernetes", "/host/etc/cni", "/host/etc/kubernetes")  # in version 0.1.0
_HIDDEN = "(not shown)"
_COMMON = 2  # characters: many messages contain a text of at most this length by chance


class Files:
    """The node's flat file and host name, and its policy on the paths and hosts that a network may name."""

    def load(self, path: str, /) -> bytes | None:
        """The content of the file at `path`; None when there is no file.

        Raises ValueError when the file is not regular or larger than a MiB, OSError when the kernel refuses to read it.
        """
        try:
            return kernel_files.read_regular(path, _LIMIT)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def follow(self, path: str, roots: str = "", /) -> str:
        """Return `path` with links resolved. Raises ValueError if this fails or the policy key `roots` forbids it."""
        if roots == "dataRoots":
            from ipam.datadir import confined  # most networks keep the usual directory

            return confined(path)
        if roots:
            return policy.current().confine(roots, path)
        try:
            return kernel_files.resolve(path)
        except OSError as fault:
            raise ValueError(f"cannot be followed: {fault.strerror}") from None

    def allow_host(self, host: str, /) -> None:
        """Raise ValueError unless `storeHosts` of the node's policy lets a network name `host`."""
        allowed = policy.current()
        if not any(policy.matches(one.lower(), host.lower()) for one in allowed.storeHosts):
            listed = policy.shortened(allowed.storeHosts)
            raise ValueError(f"is not in storeHosts ({listed}): want one that is, or change {allowed.path}")

    def host_name(self) -> str:
        return node.host_name()


OF_NODE = Files()


class Source:
    """The `ipam` block and the flat file of a configuration.

    `path` is the path of the flat file, "" when none of the paths `searched` exists. `notes` are log texts about keys
    without effect. A flat file that the block chose may belong to anyone, so faults and errors name its keys, but not
    its values. `borrowed` are the faults of a block that names a store which its author may not use. They prevent a new
    attachment. An existing attachment (`is_new` is false) must find its store again. So the source of each key is then
    chosen separately, as in version 0.1.0.
    """

    def __init__(self, block: dict[str, Any], files: Files, faults: list[Fault], is_new: bool = True) -> None:
        self.borrowed: list[Fault] = []
        self._files = files
        self._block = _flattened(block, "ipam.", faults)
        inline = self._block.get("configuration_path")
        self.searched: tuple[str, ...] = PATHS
        if inline and isinstance(inline, str):
            refused: list[Fault] = []
            followed = self._followed("ipam.configuration_path", inline, ROOTS["configuration_path"], refused)
            former = self._formerly(inline) if refused and not is_new else ""
            (self.borrowed if former else faults).extend(refused)
            if former or not refused:
                self.searched = (former or followed, *PATHS)
        self.path, flat = self._flat_file(faults)
        self.notes: list[str] = []
        if inline and self.searched != PATHS and self.path != self.searched[0]:
            read = f"{self.path} is read" if self.path else f"neither is any of {', '.join(PATHS)}"
            self.notes.append(f"ipam.configuration_path {inline} is not there: {read}")
        self._is_chosen = bool(self.path) and self.path not in PATHS
        flat = _flattened(flat, f"{self.path}: ", faults)
        names = SPELLED.values()
        self.notes += misspelt(self._block, names, "ipam.") + misspelt(flat, names, f"{self.path}: ")
        self._flat = {name: value for name, value in flat.items() if not _is_left_out(value)}
        self._brings: list[str] = []
        if flat.keys() & ETCD.keys() and self._block.get("datastore") in (None, "", "etcd"):
            of_file = {**ETCD, **self._flat}
            self._brings = [name for name in ETCD if self.names(name) and self._block[name] != of_file[name]]
        self.borrowed += self._left_out()
        is_apart = bool(self.borrowed) and not is_new
        self._from_file = {name for name in self._flat if self._is_of_flat_file(name, is_apart)}

    def fill(self, target: object, table: Sequence[Key], faults: list[Fault]) -> None:
        """Set the attribute of each key in `table` on `target`: the value in flat file or block, else the default."""
        values = {key.attribute: key.default for key in table}
        for key in table:
            is_of_file = key.name in self._from_file
            given = self._flat if is_of_file else self._block
            if key.name not in given or (value := given[key.name]) is None:
                continue
            try:
                values[key.attribute] = key.read(value)
            except ValueError as fault:
                is_hidden = key.name == "etcd_password" or (is_of_file and self._is_chosen)
                faults.append(Fault(self.where(key.name), _HIDDEN if is_hidden else value, str(fault)))
        vars(target).update(values)

    def follow(self, target: object, table: Sequence[Key], faults: list[Fault]) -> None:
        """Resolve the links of each path in `target`. A path that the node's policy forbids becomes a fault."""
        for key in table:
            if key.name not in ROOTS or key.name == "configuration_path":
                continue
            value = vars(target)[key.attribute]
            if value == key.default:
                continue
            if key.name == "log_file":
                value = self._log_file(value)
            elif key.name not in self._from_file:
                found = self.borrowed if ROOTS[key.name] == "configRoots" else faults
                value = self._followed(f"ipam.{key.name}", value, ROOTS[key.name], found)
                self._refuse_key(key.name, value)
            setattr(target, key.attribute, value)

    def _log_file(self, path: str) -> str:
        """`path` with its links resolved, since the log file is opened without following links. For a forbidden path,
        add a note to `notes` and return ""."""
        try:
            return self._files.follow(path, "" if "log_file" in self._from_file else ROOTS["log_file"])
        except ValueError as fault:
            self.notes.append(f"{self.where('log_file')} {path} {fault}; until then log lines go to stderr alone")
            return ""

    def names(self, name: str) -> bool:
        """Whether the `ipam` block itself gives the key `name` a value."""
        return not _is_left_out(self._block.get(name))

    def judge_hosts(self) -> None:
        """Add a fault to `borrowed` for each etcd host in the block that the node's policy does not allow.

        Without this check, connection errors would show the author of a network which ports of any host are open.
        """
        of_block, of_file = (
            [part.strip() for part in str(keys.get("etcd_host") or "").split(",")] for keys in (self._block, self._flat)
        )
        for text in of_block:
            if text and text not in of_file:
                try:
                    host = stores.endpoint(text, False).host
                except ValueError:
                    continue  # the choice of the store reports this fault
                try:
                    self._files.allow_host(host)
                except ValueError as fault:
                    self.borrowed.append(Fault("ipam.etcd_host", text, f'host "{host[:60]}" {fault}'))

    @property
    def whole(self) -> str:
        """The name, in place of a key, for a fault of the whole flat file."""
        return _whole(self.path)

    def is_of_node(self, name: str) -> bool:
        """Whether the value of `name` is from the node's own flat file, not from a flat file that the block chose."""
        return name in self._from_file and not self._is_chosen

    def hide(self, faults: list[Fault]) -> None:
        """If the block chose the flat file, replace the values in its faults, and the texts that may contain values."""
        for fault in faults:
            if self._is_chosen and fault.key.startswith(f"{self.path}: ") and fault.value != _HIDDEN:
                fault.value = _HIDDEN
                fault.wanted = "is wrong, or does not fit the other keys: see the file and docs/reference.md"

    def hidden(self, target: object, table: Sequence[Key]) -> list[str]:
        """Texts that no error may show, the longest first: values in `target` from a flat file that the block chose."""
        if not self._is_chosen:
            return []
        found: set[str] = set()
        for key in table:
            value = getattr(target, key.attribute)
            if isinstance(value, str) and value not in (*DATASTORES, *LEVELS) and key.name in self._from_file:
                for part in value.split(","):  # each endpoint, which a message may show with a port
                    found |= {part.strip(), part.partition("://")[2].strip(), part.strip().rpartition(":")[0]}
        return sorted((text for text in found if len(text) > _COMMON), key=len, reverse=True)

    def where(self, name: str) -> str:
        """The name of the key (or of a member, such as exclude[3]) `name` for messages: "ipam.NAME" or "PATH: NAME"."""
        return f"{self.path}: {name}" if name.partition("[")[0] in self._from_file else f"ipam.{name}"

    def node_name(self, environ_name: str) -> str:
        """The node's name: `environ_name`, else the content of configuration_path/nodename, else the host name."""
        name = environ_name.strip()
        directory = self._flat.get("configuration_path")
        if not name and directory and isinstance(directory, str):
            try:
                name = (self._files.load(f"{directory}/nodename") or b"").decode().strip()
            except (OSError, ValueError):
                pass  # as without the file
        return name.encode("utf-8", "replace").decode() or self._files.host_name()

    def _flat_file(self, faults: list[Fault]) -> tuple[str, dict[str, Any]]:
        """The first existing path in `searched`, and the JSON object in this file; ("", {}) if no path exists."""
        for path in self.searched:
            try:
                data = self._files.load(path)
                if data is not None:
                    return path, _object(data)
            except ValueError as fault:
                faults.append(_FileFault(path, str(fault)))
                return path, {}
            except OSError as fault:
                raise IoFailure(f"the flat file {path} cannot be read: {fault.strerror}") from None
        return "", {}

    def _followed(self, key: str, path: str, roots: str, faults: list[Fault]) -> str:
        """`path` with its links resolved. If this fails or is forbidden, add a fault of `key`, and return `path`."""
        try:
            return self._files.follow(path, roots)
        except ValueError as fault:
            faults.append(Fault(key, path, str(fault)))
            return path

    def _formerly(self, path: str) -> str:
        """The resolved `path` if version 0.1.0 allowed it and the policy does not set configRoots; otherwise ""."""
        resolved = OF_NODE.follow(path)
        is_below = any(kernel_files.is_below(resolved, root) for root in _FORMER_CONFIG_ROOTS)
        return resolved if is_below and policy.current().configRoots is policy.CONFIG_ROOTS else ""

    def _left_out(self) -> list[Fault]:
        """[a fault] if the block sets one etcd key to another value than the flat file's, but leaves out a second key
        of etcd in the flat file; else []."""
        if not self._brings:
            return []
        known = [name for name in ETCD if name == "etcd_host" or name in self._flat]
        missing = ", ".join(name for name in known if name not in self._block)
        if not missing:
            return []
        name = self._brings[0]
        none = "" if missing == "etcd_host" else ' ("" for none)'
        wanted = f"is not that of {self.path}: want all of the store in the block, also {missing}{none}"
        return [Fault(f"ipam.{name}", _HIDDEN if name == "etcd_password" else self._block[name], wanted)]

    def _refuse_key(self, name: str, path: str) -> None:
        """Add a fault to `borrowed` if the TLS key of the flat file's etcd is used for another server or prefix."""
        own = self._flat.get(name)
        is_elsewhere = "etcd_host" in self._brings or "etcd_prefix" in self._brings
        if name != "etcd_key_file" or not is_elsewhere or not isinstance(own, str):
            return
        if path == self._followed(name, own, "", []):
            wanted = f"is the key of {self.path} for its own etcd_host and etcd_prefix: want these, or another key"
            self.borrowed.append(Fault(f"ipam.{name}", self._block[name], wanted))

    def _is_of_flat_file(self, name: str, is_apart: bool) -> bool:
        """Whether the value of `name` comes from the flat file. If the block names its own etcd, an etcd key comes from
        the flat file only if the block lacks the key and `is_apart` is true (an existing attachment)."""
        if name in NOT_FROM_FLAT_FILE:
            return False
        is_left_out = _is_left_out(self._block.get(name))
        if name in ETCD and self._brings:
            return is_apart and is_left_out
        repeats = (name in ETCD or name in ROOTS) and self._block.get(name) == self._flat[name]
        return repeats or is_left_out


class _FileFault(Fault):
    """A fault of the whole flat file. The text has the file's path, but not its content, which may belong to anyone."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(_whole(path), None, reason)

    def __str__(self) -> str:
        return f"{self.key} {self.wanted}"


def _whole(path: str) -> str:
    return f"the flat file {path}"


def _object(data: bytes) -> dict[str, Any]:
    """The JSON object in the flat file's `data`. Raises ValueError for anything else."""
    try:
        document = codec.loads(data)
    except ValueError as fault:
        # other messages of the parser may quote the content
        place = str(fault) if " at line " in str(fault) else "see it with `python3 -m json.tool`"
        raise ValueError(f"is not JSON: {place}") from None
    if not isinstance(document, dict):
        raise ValueError("is no JSON object: want one with keys of the ipam block")
    return document


def _flattened(document: dict[str, Any], prefix: str, faults: list[Fault]) -> dict[str, Any]:
    """`document` with the keys of nested objects written "object.key", and all keys spelled as in ipam.keys."""
    flat = _spelled({name: value for name, value in document.items() if "." not in name})
    for name in NESTED:
        nested = flat.pop(name, None)
        if isinstance(nested, dict):
            flat |= _spelled({f"{name}.{key}": value for key, value in nested.items()})
        elif nested is not None:
            faults.append(Fault(prefix + name, nested, "want a JSON object"))
    return flat


def _spelled(document: dict[str, Any]) -> dict[str, Any]:
    """`document` with its keys spelled as in ipam.keys. Of keys that differ only in case, the exactly spelled key
    counts. Without such a key, the first key counts."""
    found: dict[str, Any] = {}
    for name, value in document.items():
        spelled = SPELLED.get(name.lower(), name)
        if name == spelled or spelled not in found:
            found[spelled] = value
    return found


def _is_left_out(value: object) -> bool:
    return value is None or value == "" or value == [] or value == {}
