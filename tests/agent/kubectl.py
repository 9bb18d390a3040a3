"""A kubectl for tests of `kubectl railcni`: it answers from the scene that KUBECTL_SCENE names, and does on this machine what the
pods would do. What concerns kubectl's own configuration, and requests by path, the real one answers.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

FOLDER = Path(os.environ["KUBECTL_SCENE"])
SCENE: dict[str, Any] = json.loads((FOLDER / "scene.json").read_text())


def main(argv: list[str]) -> int:
    with (FOLDER / "asked").open("a") as file:
        file.write(f"{' '.join(argv)}\n")
    if argv[0].startswith("--context="):
        argv = argv[1:]
    if argv[0] == "config" or argv[:2] == ["get", "--raw"]:
        os.execv("/usr/bin/kubectl", ["kubectl", *argv])
    verb, *rest = argv
    if verb == "get":
        found = {"items": SCENE[rest[0]]} if rest[0] in ("pods", "nodes") else pod(rest[1])
        if not found:
            print(f'Error from server (NotFound): pods "{rest[1]}" not found', file=sys.stderr)
            return 1
        print(json.dumps(found))
    elif verb == "create":
        manifest = json.load(sys.stdin)
        manifest["metadata"]["name"] = "railcni-doctor-x"
        (FOLDER / "created").write_text(json.dumps(manifest))
        print(json.dumps(manifest))
    elif verb == "exec":
        at = rest.index("--")
        root = SCENE["roots"].get(rest[at - 3])
        if not root:
            print("error: unable to upgrade connection: the node is gone", file=sys.stderr)
            return 1
        return subprocess.run([SCENE["railcni"], *(a.replace("/host", root) for a in rest[at + 2 :])]).returncode
    elif verb == "logs":
        return logs()
    elif verb == "delete":
        (FOLDER / "deleted").write_text(rest[1])
    return 0


def pod(name: str) -> Any:
    if name == "railcni-doctor-x":
        return json.loads((FOLDER / "ended").read_text())
    return SCENE["others"].get(name)


def logs() -> int:
    """Run the pod's command, with this machine's file system at /host."""
    if SCENE.get("waiting"):
        (FOLDER / "ended").write_text(
            json.dumps({"status": {"containerStatuses": [{"state": {"waiting": SCENE["waiting"]}}]}})
        )
        print("error: timed out waiting for the condition", file=sys.stderr)
        return 1
    (container,) = json.loads((FOLDER / "created").read_text())["spec"]["containers"]
    with tempfile.TemporaryDirectory() as host:
        _, *arguments = [part.replace("'/host'", f"'{host}'") for part in container["command"]]
        enter = f'mount --rbind / {host} && exec "$@"'
        argv = ["unshare", "--mount", "--propagation=private", "sh", "-c", enter, "sh", sys.executable, *arguments]
        environ = {**os.environ, **{one["name"]: one["value"] for one in container["env"]}}
        code = subprocess.run(argv, env=environ).returncode
    (FOLDER / "ended").write_text(
        json.dumps({"status": {"containerStatuses": [{"state": {"terminated": {"exitCode": code}}}]}})
    )
    return 0


sys.exit(main(sys.argv[1:]))
