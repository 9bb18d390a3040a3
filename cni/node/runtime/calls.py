"""Run the plugins of a network in order, and cache the results, as a container runtime does.

Plugins are called as libcni calls them (libcni/api.go, SPEC.md section 3), with three differences that help the user of
a command line. DEL and GC call all plugins before they report errors. VERSION is called before ADD. If a network's spec
version is too old for CHECK or STATUS, the call uses a newer version that the network's plugins support.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from cni.documents.networks import ChainStep, Network
from cni.node.runtime.cache import Cache, CachedResult, Parameters
from cni.node.runtime.executables import Executables, PluginFailed, StepsFailed
from cni.shared.spec import parsing
from cni.shared.spec.errors import CniError, DecodingFailure, IncompatibleVersion, InvalidConfig
from cni.shared.spec.request import NEWEST, SUPPORTED, VERBS_SINCE, at_least


class Runtime:
    """A runtime that calls the plugins of networks, and keeps their results in `cache`."""

    def __init__(self, executables: Executables, cache: Cache) -> None:
        self._run = executables.run
        self.cache = cache

    # --- verbs ---

    def add(self, network: Network, parameters: Parameters, version: str) -> dict[str, Any]:
        """Call each plugin with ADD, in the spec version `version`; return and cache the result of the last plugin."""
        result: dict[str, Any] | None = None
        for step in network.steps:
            config = _request(network, step, version, parameters, result)
            result = self._run("ADD", step.type, config, parameters)
            if not isinstance(result, dict):
                raise DecodingFailure(f"{step.type} ADD answered no result, but {json.dumps(result)[:60]}")
            result["cniVersion"] = result.get("cniVersion") or version  # may be missing: containernetworking/cni#895
            parsing.parse(result, f"the answer of {step.type}")
        self.cache.write(CachedResult(network.name, parameters, json.dumps(network.document).encode(), result))
        return result or {}

    def delete(self, network: Network, parameters: Parameters) -> None:
        """Call each plugin with DEL, in reverse order, even after a failed call. If no call fails, remove the
        attachment from the cache. Raises the error of the failed call, or StepsFailed if several calls failed."""
        version, previous = self._version(network), None
        if at_least(version, "0.4.0"):
            with suppress(CniError):  # a DEL works without prevResult
                previous = self.cached_result(network, parameters, version)
        faults: list[CniError] = []
        for step in reversed(network.steps):
            with _noted(faults):
                self._run("DEL", step.type, _request(network, step, version, parameters, previous), parameters)
        _report(faults)
        self.cache.remove(network.name, parameters)

    def check(self, network: Network, parameters: Parameters) -> None:
        """Call each plugin with CHECK and the cached result of the ADD; do nothing if the network has disableCheck."""
        if network.disable_check:
            return
        version = self._version_with("CHECK", self._version(network), [step.type for step in network.steps])
        previous = self.cached_result(network, parameters, version)
        if previous is None:
            raise InvalidConfig(
                f"{network.name} is not attached as {parameters.ifname}: {self.cache.directory}/results has no result "
                f"of container {parameters.container_id}: attach it first, or name another --ifname or --container-id"
            )
        for step in network.steps:
            self._run("CHECK", step.type, _request(network, step, version, parameters, previous), parameters)

    def gc(self, network: Network, valid: Sequence[Parameters], stale: Sequence[CachedResult]) -> bool:
        """Call DEL for each `stale` attachment, then GC with the `valid` attachments, which stay; return whether GC was
        called. GC is not called if the spec version does not have it. Do nothing if the network has disableGC."""
        if network.disable_gc:
            return False
        faults: list[CniError] = []
        for entry in stale:
            with _noted(faults):
                self.delete(network, entry.parameters)
        version = self._version(network)
        asked = at_least(version, VERBS_SINCE["GC"])
        if asked:
            attachments = [{"containerID": p.container_id, "ifname": p.ifname} for p in valid]
            # libcni sends the list under its name in the spec, and under its name in a draft of the spec
            more = dict.fromkeys(("cni.dev/valid-attachments", "cni.dev/attachments"), attachments)
            for step in network.steps:
                with _noted(faults):
                    self._run("GC", step.type, {**_config(network, step, version), **more})
        _report(faults)
        return asked

    def status(self, network: Network) -> list[tuple[ChainStep, CniError | None]]:
        """Call each plugin with STATUS. Return each step with the plugin's error, or None if the plugin is ready. A
        plugin that does not support STATUS counts as failed, with the error code 1."""
        answers: list[tuple[ChainStep, CniError | None]] = []
        for step in network.steps:
            faults: list[CniError] = []
            with _noted(faults):
                version = self._version_with("STATUS", self._version(network), [step.type])
                self._run("STATUS", step.type, _config(network, step, version))
            answers.append((step, faults[0] if faults else None))
        return answers

    # --- versions and results ---

    def negotiate(self, network: Network) -> str:
        """The newest spec version that the network and all its plugins support (SPEC.md, "Version considerations").
        Raises IncompatibleVersion if there is none."""
        spoken = {step.type: self.plugin_versions(step.type) for step in network.steps}
        common = [v for v in network.versions if all(v in s for s in spoken.values())]
        if common:
            return common[-1]
        lacking = [f"{t} speaks {', '.join(s) or 'none'}" for t, s in spoken.items() if not {*network.versions} & {*s}]
        message = f"network {network.name} needs cniVersion {' or '.join(network.versions)}: {'; '.join(lacking) or 'its plugins have none of them in common'}"
        raise IncompatibleVersion(message)

    def plugin_versions(self, plugin: str) -> list[str]:
        """The spec versions that the executable of `plugin` reports; 0.1.0 if it does not know VERSION."""
        dummy = Parameters("", "dummy", "dummy")  # plugins older than 0.2.0 require the values even for VERSION
        try:
            answer = self._run("VERSION", plugin, {"cniVersion": NEWEST}, dummy)
        except PluginFailed as fault:
            if fault.msg == "unknown CNI_COMMAND: VERSION":
                return ["0.1.0"]
            raise
        spoken = answer.get("supportedVersions") if isinstance(answer, dict) else None
        return [str(v) for v in spoken] if isinstance(spoken, list) else ["0.1.0"]

    def cached_result(self, network: Network, parameters: Parameters, version: str) -> dict[str, Any] | None:
        """The cached result of the attachment in the format of the spec version `version`; None if none is cached."""
        entry = self.cache.read(network.name, parameters)
        if entry is None or entry.result is None:
            return None
        return parsing.parse(entry.result, "the cached result").document(version)

    def _version(self, network: Network) -> str:
        """The spec version for calls after an ADD. If the network has several versions, one is negotiated."""
        if len(network.versions) > 1:
            with suppress(CniError):  # the step itself will report the fault of its plugin
                return self.negotiate(network)
        return network.versions[-1]

    def _version_with(self, verb: str, version: str, plugins: Sequence[str]) -> str:
        """`version` if its spec has `verb`, else the newest version with `verb` that all `plugins` support. Raises
        IncompatibleVersion if there is no such version."""
        since = VERBS_SINCE[verb]
        if at_least(version, since):
            return version
        spoken = {plugin: self.plugin_versions(plugin) for plugin in plugins}
        for newer in reversed(SUPPORTED):
            if at_least(newer, since) and all(newer in s for s in spoken.values()):
                return newer
        newest = ", ".join(f"{plugin} speaks {(s or ['none'])[-1]}" for plugin, s in spoken.items())
        raise IncompatibleVersion(f"{verb} needs cniVersion {since} or newer: {newest} at most")


def _config(network: Network, step: ChainStep, version: str) -> dict[str, Any]:
    return {**step.document, "name": network.name, "cniVersion": version}


def _request(
    network: Network, step: ChainStep, version: str, parameters: Parameters, previous: dict[str, Any] | None
) -> dict[str, Any]:
    """The stdin of the plugin of `step`, with `previous` as prevResult (SPEC.md, "Deriving request configuration")."""
    config = _config(network, step, version)
    if previous is not None:
        config["prevResult"] = previous
    wanted = [c for c, supported in step.capabilities.items() if supported]
    given = {c: parameters.capability_args[c] for c in wanted if c in parameters.capability_args}
    if given:
        config["runtimeConfig"] = given
    return config


@contextmanager
def _noted(faults: list[CniError]) -> Iterator[None]:
    """Add a CniError in the `with` block to `faults` instead of raising it."""
    try:
        yield
    except StepsFailed as several:
        faults += several.faults
    except CniError as fault:
        faults.append(fault)


def _report(faults: Sequence[CniError]) -> None:
    if len(faults) == 1:
        raise faults[0]
    if faults:
        raise StepsFailed(faults)
