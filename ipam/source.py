"""Choose the source of each key's value: the `ipam` block, otherwise the flat file (whereabouts.conf).

The flat file has the values of keys that the block leaves out, also inside `dns` and `kubernetes`
(whereabouts, pkg/config, GetFlatIPAM and the lines after its call).

The author of a network may use no credentials that only the administrator can read, and may learn nothing about hosts
that the node does not let networks name. So a block that names a store of its own

- must have all keys of etcd (server, prefix and credentials) as soon as one differs from the flat file. A kubeconfig is
  one file with server and credentials, so it needs no other key;
- may name only files below `configRoots` of the node's policy, and hosts of etcd in `storeHosts`.

`Source.borrowed` has the faults of a block that breaks these rules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cni.shared.config import Fault, Key, misspelt
from cni.shared.log import LEVELS
from cni.shared.spec import codec
from cni.shared.spec.errors import IoFailure
from cni.shared.spec.request import member
from ipam import flatfile, stores
from ipam.keys import DATASTORES, ETCD, NESTED, NOT_FROM_FLAT_FILE, ROOTS, SPELLED

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, Protocol

    class Files(Protocol):
        """Access to files, the host name, and the policy for paths and hosts: the module ipam.flatfile, or a test's."""

        def load(self, path: str, /) -> bytes | None: ...
        def follow(self, path: str, roots: str = "", /) -> str: ...
        def allow_host(self, host: str, /) -> None: ...
        def host_name(self) -> str: ...


_HIDDEN = "(not shown)"
_COMMON = 2  # characters: most messages contain texts as short as this by chance


class Source:
    """The `ipam` block and the flat file of a configuration.

    `path` is the flat file, or "" when none of the paths `searched` exists. `notes` are texts for the log about keys
    without effect. A flat file that the block chose may belong to anyone, so faults and errors name its keys, but not its
    values. `borrowed` are the faults of a block that names a store which it may not use. They prevent a new attachment.
    For an existing one (`is_new` false), whose store must be found, each key alone chooses its source, as in 0.1.0.
    """

    def __init__(self, block: dict[str, Any], files: Files, faults: list[Fault], is_new: bool = True) -> None:
        self.borrowed: list[Fault] = []
        self._block = _flattened(block, "ipam.", faults)
        inline = self._block.get("configuration_path")
        self.searched: tuple[str, ...] = flatfile.PATHS
        if inline and isinstance(inline, str):
            refused: list[Fault] = []
            followed = _follow("ipam.configuration_path", inline, ROOTS["configuration_path"], files, refused)
            former = flatfile.formerly(inline) if refused and not is_new else ""
            (self.borrowed if former else faults).extend(refused)
            if former or not refused:
                self.searched = (former or followed, *flatfile.PATHS)
        self.path, flat = _flat_file(self.searched, files, faults)
        self.notes: list[str] = []
        if inline and self.searched != flatfile.PATHS and self.path != self.searched[0]:
            read = f"{self.path} is read" if self.path else f"neither is any of {', '.join(flatfile.PATHS)}"
            self.notes.append(f"ipam.configuration_path {inline} is not there: {read}")
        self._is_chosen = bool(self.path) and self.path not in flatfile.PATHS
        self._flat = _flattened(flat, f"{self.path}: ", faults)
        names = (*SPELLED.values(), *NESTED)
        self.notes += misspelt(self._block, names, "ipam.") + misspelt(self._flat, names, f"{self.path}: ")
        self._brings: list[str] = []
        if self._flat.keys() & ETCD.keys() and self._block.get("datastore") in (None, "", "etcd"):
            self._brings = [name for name in ETCD if self.names(name) and self._block[name] != self._of_flat_file(name)]
        self.borrowed += self._left_out()
        is_apart = bool(self.borrowed) and not is_new
        self._from_file = {name for name in self._flat if self._is_of_flat_file(name, is_apart)}

    def fill(self, target: object, table: Sequence[Key], faults: list[Fault]) -> None:
        """Set the attributes of `target` that `table` names: from the flat file or the `ipam` block, else the default."""
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

    def follow(self, target: object, table: Sequence[Key], files: Files, faults: list[Fault]) -> None:
        """Resolve the links of each path in `target`. A path that the node does not allow is a fault."""
        for key in table:
            if key.name not in ROOTS or key.name == "configuration_path":
                continue
            value = vars(target)[key.attribute]
            if value == key.default:
                continue
            if key.name == "log_file":
                value = self._log_file(value, files)
            elif key.name not in self._from_file:
                found = self.borrowed if ROOTS[key.name] == "configRoots" else faults
                value = _follow(f"ipam.{key.name}", value, ROOTS[key.name], files, found)
                self._refuse_key(key.name, value, files)
            setattr(target, key.attribute, value)

    def _log_file(self, path: str, files: Files) -> str:
        """`path` with links resolved: opening the log follows none. For a forbidden path, adds a note and returns ""."""
        try:
            return files.follow(path, "" if "log_file" in self._from_file else ROOTS["log_file"])
        except ValueError as fault:
            self.notes.append(f"{self.where('log_file')} {path} {fault}; until then log lines go to stderr alone")
            return ""

    def names(self, name: str) -> bool:
        """Whether the block itself has the key `name`."""
        return not _is_left_out(self._block.get(name))

    def judge_hosts(self, files: Files) -> None:
        """Add a fault to `borrowed` for each host of etcd in the block that the node's policy does not allow.

        Otherwise the error of a connection would show which ports of any host are open.
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
                    files.allow_host(host)
                except ValueError as fault:
                    self.borrowed.append(Fault("ipam.etcd_host", text, f'host "{host[:60]}" {fault}'))

    def is_of_node(self, name: str) -> bool:
        """Whether the value of `name` is from the node's own flat file, not from one that the block names."""
        return name in self._from_file and not self._is_chosen

    def hide(self, faults: list[Fault]) -> None:
        """Remove from the faults the values of a flat file that the block chose, and texts made from these values."""
        for fault in faults:
            if self._is_of_chosen(fault) and fault.value != _HIDDEN:
                fault.value = _HIDDEN
                fault.wanted = "is wrong, or does not fit the other keys: see the file and docs/reference.md"

    def hidden(self, target: object, table: Sequence[Key]) -> list[str]:
        """Texts in `target` from a flat file that the block names, the longest first: no error may show them."""
        if not self._is_chosen:
            return []
        found: set[str] = set()
        for key in table:
            value = getattr(target, key.attribute)
            if isinstance(value, str) and value not in (*DATASTORES, *LEVELS) and key.name in self._from_file:
                for part in value.split(","):  # each endpoint, which a message may show with a port
                    found |= {part.strip(), part.partition("://")[2].strip(), part.strip().rpartition(":")[0]}
        return sorted((text for text in found if len(text) > _COMMON), key=len, reverse=True)

    def _is_of_chosen(self, fault: Fault) -> bool:
        return self._is_chosen and fault.key.startswith(f"{self.path}: ")

    def where(self, name: str) -> str:
        """The name of a key, or of a member such as exclude[3], for messages: "ipam.NAME" or "PATH: NAME"."""
        return f"{self.path}: {name}" if name.partition("[")[0] in self._from_file else f"ipam.{name}"

    def node_name(self, environ_name: str, files: Files) -> str:
        """The node's name: `environ_name`, else the text of configuration_path/nodename, else the host name."""
        name = environ_name.strip()
        directory = self._flat.get("configuration_path")
        if not name and directory and isinstance(directory, str):
            try:
                name = (files.load(f"{directory}/nodename") or b"").decode().strip()
            except (OSError, ValueError):
                pass  # as without the file
        return name or files.host_name()

    def _left_out(self) -> list[Fault]:
        """One fault if the block changes the flat file's etcd, but lacks a key of etcd that the file has; else []."""
        if not self._brings:
            return []
        known = [name for name in ETCD if name == "etcd_host" or not _is_left_out(self._flat.get(name))]
        missing = ", ".join(name for name in known if name not in self._block)
        if not missing:
            return []
        name = self._brings[0]
        none = "" if missing == "etcd_host" else ' ("" for none)'
        wanted = f"is not that of {self.path}: want all of the store in the block, also {missing}{none}"
        return [Fault(f"ipam.{name}", _HIDDEN if name == "etcd_password" else self._block[name], wanted)]

    def _refuse_key(self, name: str, path: str, files: Files) -> None:
        """Refuse a block that uses the TLS key of the flat file's etcd for another server or prefix."""
        own = self._flat.get(name)
        is_elsewhere = "etcd_host" in self._brings or "etcd_prefix" in self._brings
        if name != "etcd_key_file" or not is_elsewhere or not isinstance(own, str):
            return
        if path == _follow(name, own, "", files, []):
            wanted = f"is the key of {self.path} for its own etcd_host and etcd_prefix: want these, or another key"
            self.borrowed.append(Fault(f"ipam.{name}", self._block[name], wanted))

    def _of_flat_file(self, name: str) -> object:
        """The value of a key of etcd in the flat file, or the default."""
        value = self._flat.get(name)
        return ETCD[name] if _is_left_out(value) else value

    def _is_of_flat_file(self, name: str, is_apart: bool) -> bool:
        """Whether the value of `name` comes from the flat file. If the block names its own etcd, no key of etcd does, unless
        each key alone chooses its source (`is_apart`)."""
        if name in NOT_FROM_FLAT_FILE or _is_left_out(self._flat[name]):
            return False
        is_left_out = _is_left_out(self._block.get(name))
        if name in ETCD and self._brings:
            return is_apart and is_left_out
        repeats = (name in ETCD or name in ROOTS) and self._block.get(name) == self._flat[name]
        return repeats or is_left_out


def _follow(key: str, path: str, roots: str, files: Files, faults: list[Fault]) -> str:
    try:
        return files.follow(path, roots)
    except ValueError as fault:
        faults.append(Fault(key, path, str(fault)))
        return path


class _FileFault(Fault):
    """A fault of the flat file as a whole. The text has the path but not the content, which may belong to anyone."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"the flat file {path}", None, reason)

    def __str__(self) -> str:
        return f"{self.key} {self.wanted}"


def _flat_file(paths: Sequence[str], files: Files, faults: list[Fault]) -> tuple[str, dict[str, Any]]:
    """The first of `paths` that exists and the JSON object in this file; "" and {} if no path exists."""
    for path in paths:
        try:
            data = files.load(path)
        except ValueError as fault:
            faults.append(_FileFault(path, str(fault)))
            return path, {}
        except OSError as fault:
            raise IoFailure(f"the flat file {path} cannot be read: {fault.strerror}") from None
        if data is not None:
            return path, _object(path, data, faults)
    return "", {}


def _object(path: str, data: bytes, faults: list[Fault]) -> dict[str, Any]:
    try:
        document = codec.loads(data)
    except ValueError as fault:
        # other messages of the parser may quote the content
        place = str(fault) if " at line " in str(fault) else "see it with `python3 -m json.tool`"
        faults.append(_FileFault(path, f"is not JSON: {place}"))
        return {}
    if not isinstance(document, dict):
        faults.append(_FileFault(path, "is no JSON object: want one with keys of the ipam block"))
        return {}
    return document


def _flattened(document: dict[str, Any], prefix: str, faults: list[Fault]) -> dict[str, Any]:
    """`document` with the keys of nested objects as "object.key"; all keys are spelled as in the tables."""
    found = [(name, value) for name, value in document.items() if "." not in name]
    for name in NESTED:
        nested = member(document, name)
        if isinstance(nested, dict):
            found += [(f"{name}.{key}", value) for key, value in nested.items()]
        elif nested is not None:
            faults.append(Fault(prefix + name, nested, "want a JSON object"))
    flat: dict[str, Any] = {}
    for name, value in found:
        spelled = SPELLED.get(name.lower(), name)
        if name == spelled or spelled not in flat:  # as in `member`: the exact name, else the first in any case
            flat[spelled] = value
    return flat


def _is_left_out(value: object) -> bool:
    return value is None or value == "" or value == [] or value == {}
