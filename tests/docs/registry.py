"""A registry of images, as far as `skopeo copy` to it goes (the OCI distribution specification): blobs and manifests by their
digests, checked, and tags. `python -m tests.docs.registry FOLDER` serves at port 80.
"""

import hashlib
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

FOLDER = Path(sys.argv[1]) if __name__ == "__main__" else Path()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def serve(self) -> None:
        url = urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        reference = url.path.rpartition("/")[2]
        file = FOLDER / url.path.strip("/").replace("/", "%").replace("manifests%sha256:", "blobs%sha256:")
        if self.command in ("GET", "HEAD"):
            if url.path == "/v2/":
                self.answer(200)
            elif file.exists():
                self.answer(200, file.read_bytes())
            else:
                self.answer(404)
        elif self.command == "POST":
            self.answer(202, b"", Location=f"{url.path}upload")
        elif self.command == "PATCH":
            with (FOLDER / "upload").open("ab") as upload:
                upload.write(body)
            self.answer(202, b"", Location=url.path)
        elif "manifests" in url.path:
            digest = f"sha256:{hashlib.sha256(body).hexdigest()}"
            if reference.startswith("sha256:") and reference != digest:
                self.answer(400)
                return
            for name in {reference, digest}:
                path = url.path.rpartition("/")[0] + f"/{name}"
                (FOLDER / path.strip("/").replace("/", "%").replace("manifests%sha256:", "blobs%sha256:")).write_bytes(
                    body
                )
            self.answer(201, b"", **{"Docker-Content-Digest": digest})
        else:
            (digest,) = parse_qs(url.query)["digest"]
            held = FOLDER / "upload"
            whole = (held.read_bytes() if held.exists() else b"") + body
            held.unlink(missing_ok=True)
            if f"sha256:{hashlib.sha256(whole).hexdigest()}" != digest:
                self.answer(400)
                return
            path = url.path.strip("/").replace("/", "%").removesuffix("uploads%upload") + digest
            (FOLDER / path).write_bytes(whole)
            self.answer(201, b"", Location=url.path)

    do_GET = do_HEAD = do_POST = do_PATCH = do_PUT = serve

    def answer(self, code: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(code)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        pass


if __name__ == "__main__":
    FOLDER.mkdir()
    ThreadingHTTPServer(("127.0.0.1", 80), Handler).serve_forever()
