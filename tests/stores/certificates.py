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
    for authority in ("ca", "other-ca"):
        _key(directory, authority)
        _run(
            directory,
            "req",
            "-x509",
            "-key",
            f"{authority}.key",
            "-subj",
            f"/CN={authority}",
            "-days",
            "2",
            "-out",
            f"{authority}.pem",
        )
    for name, authority, names in (
        ("server", "ca", "IP:127.0.0.1,DNS:localhost"),
        ("server-only", "ca", "IP:127.0.0.1"),
        ("elsewhere", "ca", "DNS:elsewhere.example"),
        ("client", "ca", "DNS:client"),
        ("nameless", "ca", "DNS:client"),
        ("stranger", "other-ca", "DNS:stranger"),
    ):
        _key(directory, name)
        subject = "/O=railcni" if name == "nameless" else f"/O=railcni/CN={name}"
        _run(directory, "req", "-new", "-key", f"{name}.key", "-subj", subject, "-out", f"{name}.csr")
        uses = "serverAuth" if name == "server-only" else "serverAuth,clientAuth"
        (directory / f"{name}.ext").write_text(f"subjectAltName={names}\nextendedKeyUsage={uses}\n")
        _run(
            directory,
            *("x509", "-req", "-in", f"{name}.csr", "-CA", f"{authority}.pem", "-CAkey", f"{authority}.key"),
            *("-CAcreateserial", "-days", "2", "-extfile", f"{name}.ext", "-out", f"{name}.pem"),
        )


def _key(directory: Path, name: str) -> None:
    _run(directory, "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", f"{name}.key")


def _run(directory: Path, *arguments: str) -> None:
    done = subprocess.run(["openssl", *arguments], cwd=directory, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
