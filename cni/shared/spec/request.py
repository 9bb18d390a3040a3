"""Parse environment and stdin into a Request. The protocol is checked in this order, with these error codes:

    1. CNI_CONTAINERID and CNI_IFNAME are well formed                    4
    2. no variable that the verb needs is missing; one error lists all   4
    3. stdin is a JSON object                                            6
    4. its `name` is well formed                                         7
    5. CNI_COMMAND is a known verb                                       4
    6. cniVersion is known, and the verb exists in it                    1

Sources: SPEC.md sections 1 and 2; the order is that of the dispatcher in pkg/skel of containernetworking/cni.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cni.shared.spec import codec
from cni.shared.spec.errors import DecodingFailure, IncompatibleVersion, InvalidConfig, InvalidEnvironment

SUPPORTED = ("0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0")
NEWEST = SUPPORTED[-1]
VERBS_SINCE = {
    "ADD": "0.1.0",
    "DEL": "0.1.0",
    "CHECK": "0.4.0",
    "GC": "1.1.0",
    "STATUS": "1.1.0",
}  # the verbs, each with the oldest version that has it (SPEC.md, section 2)
_ALNUM = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789")
_IDENTIFIER = _ALNUM | frozenset("_.-")
_ATTACHMENT_VERBS = ("ADD", "CHECK", "DEL")
_NEEDED = {
    "ADD": ("CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_PATH"),
    "CHECK": ("CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_PATH"),
    "DEL": ("CNI_CONTAINERID", "CNI_IFNAME", "CNI_PATH"),
    "GC": ("CNI_PATH",),
    "STATUS": ("CNI_PATH",),
}
_OF_NO_LINK = frozenset("/:\0")  # characters that no link's name may have, beside white space
IFNAME_BYTES = 15  # IFNAMSIZ less its final zero, include/uapi/linux/if.h


class Attachment:
    """The identity of an attachment: network name, containerID and ifname. ADD makes attachments, DEL removes them."""

    def __init__(self, network: str, container_id: str, ifname: str) -> None:
        self.network = network
        self.container_id = container_id
        self.ifname = ifname

    def key(self) -> tuple[str, str, str]:
        """The network name, the containerID and the ifname, which together identify the attachment."""
        return (self.network, self.container_id, self.ifname)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Attachment) and self.key() == other.key()

    def __hash__(self) -> int:
        return hash(self.key())

    def __str__(self) -> str:
        return f"{self.network}/{self.container_id}/{self.ifname}"


class Request:
    """One call of a plugin.

    `command` is the verb. `config` is the parsed stdin with its keys as written, `stdin` has the bytes for a delegated
    plugin. `cni_version` is the version of the reply, `args` CNI_ARGS as a dictionary, `environ` the whole environment.
    `pod` is (namespace, name, uid) from CNI_ARGS, with "" for a missing part. `ipam_type` is `ipam.type`, "" for a link
    without addresses. In a GC or STATUS, which concern a network, `attachment` has an empty containerID and ifname.
    """

    def __init__(self, environ: Mapping[str, str], stdin: bytes, config: dict[str, Any], args: dict[str, str]) -> None:
        self.command = environ["CNI_COMMAND"]
        self.environ = environ
        self.args = args
        self.pod = args.get("K8S_POD_NAMESPACE", ""), args.get("K8S_POD_NAME", ""), args.get("K8S_POD_UID", "")
        self.configure(config, stdin)
        self.netns = environ.get("CNI_NETNS", "")
        self.path = [p for p in environ.get("CNI_PATH", "").split(":") if p]
        self.cni_version = self.member("cniVersion") or "0.1.0"
        self.attachment = Attachment(
            self.member("name"), environ.get("CNI_CONTAINERID", ""), environ.get("CNI_IFNAME", "")
        )

    def configure(self, config: dict[str, Any], stdin: bytes) -> None:
        """Replace the configuration by `config`, whose JSON text is `stdin`."""
        self.config = config
        self.stdin = stdin
        self._folded = fold(config)
        kind = member(self.member("ipam"), "type")
        self.ipam_type = kind if isinstance(kind, str) else ""

    def member(self, key: str) -> Any:
        """The value of `key` in the configuration, without regard to case; None when absent."""
        return self.config[key] if key in self.config else self._folded.get(key.lower())

    @property
    def netns_override(self) -> bool:
        """Whether the caller allows CNI_NETNS to be the plugin's own namespace."""
        return self.environ.get("CNI_NETNS_OVERRIDE", "").lower() in ("1", "true")

    def of_runtime(self, capability: str) -> Any:
        """The value of `capability` in runtimeConfig; None when absent."""
        return member(self.member("runtimeConfig"), capability)


def parse(environ: Mapping[str, str], stdin: bytes) -> Request:
    """The request in `environ` and `stdin`. Raises a CniError for the first check that fails."""
    command = environ.get("CNI_COMMAND", "")
    if command in _ATTACHMENT_VERBS:
        _check_identity(environ, command)
    missing = [name for name in _NEEDED.get(command, ()) if not environ.get(name)]
    if missing:
        raise InvalidEnvironment(f"{command} needs {', '.join(missing)} in the environment")
    config = _decode(stdin)
    _check_network_name(member(config, "name"))
    if command not in VERBS_SINCE:
        raise InvalidEnvironment(
            f'CNI_COMMAND "{command[:40]}" is unknown: use one of {", ".join(VERBS_SINCE)}, VERSION'
        )
    version = member(config, "cniVersion")
    if version is not None and not isinstance(version, str):
        raise DecodingFailure(f'cniVersion {codec.shown(version)} is not a string: write one such as "{NEWEST}"')
    version = version or "0.1.0"
    if version not in SUPPORTED:
        raise IncompatibleVersion(
            f'cniVersion "{version[:40]}" is not supported: use one of {", ".join(SUPPORTED)}',
            f"cniVersion of the network configuration: {version[:200]!r}",
        )
    since = VERBS_SINCE[command]
    if not at_least(version, since):
        raise IncompatibleVersion(
            f"{command} does not exist in cniVersion {version}: it needs {since} or newer",
            f"cniVersion of the network configuration: {version}",
        )
    return Request(environ, stdin, config, _parse_args(environ.get("CNI_ARGS", "")))


def at_least(version: str, floor: str) -> bool:
    """Whether `version`, one of SUPPORTED, is `floor` or newer. Compares strings, since all numbers have one digit."""
    return version >= floor


def version_of(stdin: bytes) -> str:
    """The cniVersion for an error reply: the cniVersion in `stdin` if it is supported, else the newest."""
    try:
        version = member(codec.loads_foreign(stdin), "cniVersion")
    except ValueError:
        return NEWEST
    return version if version in SUPPORTED else NEWEST


def member(document: Any, *keys: str) -> Any:
    """The value at the path `keys` in `document`; None when a key is missing, or its parent is no object.

    If an object lacks a key, its first key that differs only in case counts. Go's encoding/json has the same rule, and
    existing configurations rely on it.
    """
    for key in keys:
        if not isinstance(document, dict):
            return None
        if key in document:
            document = document[key]
        else:
            folded = key.lower()
            document = next((value for name, value in document.items() if name.lower() == folded), None)
    return document


def fold(document: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of `document` with its keys in lower case. Of keys that differ only in case, the first counts."""
    return {name.lower(): value for name, value in reversed([*document.items()])}


def _check_identity(environ: Mapping[str, str], command: str) -> None:
    container_id = environ.get("CNI_CONTAINERID", "")
    if container_id and not is_identifier(container_id):
        raise InvalidEnvironment(
            f"CNI_CONTAINERID {codec.shown(container_id)} is malformed: start with a letter or digit, then letters, digits, _ . -"
        )
    ifname = environ.get("CNI_IFNAME", "")
    fault = ifname and ifname_fault(ifname, command)
    if fault:
        raise InvalidEnvironment(f"CNI_IFNAME {codec.shown(ifname)} {fault}")


def is_identifier(text: str) -> bool:
    """Whether `text` can be a containerID or network name: ^[a-zA-Z0-9][a-zA-Z0-9_.-]*$."""
    return bool(text) and text[0] in _ALNUM and _IDENTIFIER.issuperset(text)


def ifname_fault(name: str, command: str = "ADD") -> str:
    """The reason why `name` cannot be the name of a link; "" if it can (dev_valid_name, net/core/dev.c).

    A name with %, such as "net%d", is a pattern: the kernel gives the link another name (__dev_alloc_name). "all" and
    "default" do not stand for a link in /proc/sys (sysctl_dev_name_is_allowed). DEL accepts names of both kinds, since
    a runtime calls DEL even after a refused ADD, and this DEL must succeed.
    """
    if len(name.encode("utf-8", "surrogateescape")) > IFNAME_BYTES:
        return f"is longer than {IFNAME_BYTES} bytes: want a shorter one, such as net1"
    if name in (".", ".."):
        return "cannot name a link: want another, such as net1"
    if not _OF_NO_LINK.isdisjoint(name) or (name and name.split() != [name]) or ("%" in name and command != "DEL"):
        return "has a character that no link may have, / : % or white space: want another, such as net1"
    if name in ("all", "default") and command != "DEL":
        return "means all links in /proc/sys/net: want another, such as net1"
    return ""


def _check_network_name(name: Any) -> None:
    if name is None or name == "":
        raise InvalidConfig("the network configuration has no name: add the key `name`")
    if not isinstance(name, str):
        raise DecodingFailure(f"name {codec.shown(name)} is not a string: write it in quotes")
    if not is_identifier(name):
        raise InvalidConfig(
            f"name {codec.shown(name)} is malformed: start with a letter or digit, then letters, digits, _ . -"
        )


def _decode(stdin: bytes) -> dict[str, Any]:
    try:
        config = codec.loads_foreign(stdin)
    except codec.TooMuch as fault:
        raise DecodingFailure(f"the network configuration on stdin is refused: {fault}; make it smaller") from None
    except ValueError as fault:
        text = stdin[:200].decode("utf-8", "replace")
        raise DecodingFailure(
            f"the network configuration on stdin is not JSON: {fault}",
            f"it begins: {text}" if stdin else "stdin is empty",
        ) from None
    if not isinstance(config, dict):
        raise DecodingFailure(f"the network configuration on stdin is no JSON object, but {codec.shown(config)}")
    return config


def _parse_args(text: str) -> dict[str, str]:
    """CNI_ARGS, "K=V;K2=V2", as a dictionary. Raises InvalidEnvironment for a part without `=`."""
    args: dict[str, str] = {}
    for part in text.split(";"):
        if not part.strip():
            continue
        key, sign, value = part.partition("=")
        if not sign:
            raise InvalidEnvironment(f'CNI_ARGS part "{part[:60]}" has no "=": write KEY=VALUE;KEY=VALUE')
        args[key.strip()] = value.strip()
    return args
