"""Certificates for tests, made with the openssl command: two authorities, a server's and a client's certificate."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


def make(directory: Path) -> None:
    """ca.pem, other-ca.pem, server.pem (for 127.0.0.1 and localhost), server-only.pem (not for clients), elsewhere.pem, client.pem,
    nameless.pem (of a client, without a CommonName), stranger.pem, with keys."""
    if not shutil.which("openssl"):
        pytest.skip("needs openssl: install it")

    def run(command: str) -> None:
        done = subprocess.run(["openssl", *command.split()], cwd=directory, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    for authority in ("ca", "other-ca"):
        run(f"ecparam -name prime256v1 -genkey -noout -out {authority}.key")
        run(f"req -x509 -key {authority}.key -subj /CN={authority} -days 2 -out {authority}.pem")
    for name, authority, names in (
        ("server", "ca", "IP:127.0.0.1,DNS:localhost"),
        ("server-only", "ca", "IP:127.0.0.1"),
        ("elsewhere", "ca", "DNS:elsewhere.example"),
        ("client", "ca", "DNS:client"),
        ("nameless", "ca", "DNS:client"),
        ("stranger", "other-ca", "DNS:stranger"),
    ):
        subject = "/O=railcni" if name == "nameless" else f"/O=railcni/CN={name}"
        uses = "serverAuth" if name == "server-only" else "serverAuth,clientAuth"
        (directory / f"{name}.ext").write_text(f"subjectAltName={names}\nextendedKeyUsage={uses}\n")
        run(f"ecparam -name prime256v1 -genkey -noout -out {name}.key")
        run(f"req -new -key {name}.key -subj {subject} -out {name}.csr")
        signed = f"-CA {authority}.pem -CAkey {authority}.key -CAcreateserial -days 2 -extfile {name}.ext"
        run(f"x509 -req -in {name}.csr {signed} -out {name}.pem")
