"""A hub on localhost that serves folders as repositories, so that real clients can be tested."""

import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        length = int(self.headers.get("Content-Length") or 0)
        form = parse_qs(self.rfile.read(length).decode())
        address = urlsplit(self.path)
        form |= parse_qs(address.query)
        path = unquote(address.path).strip("/")
        self.server.asked.append(f"{self.command} {path}")
        if self.server.refusal:
            return self.refuse(*self.server.refusal)
        if path.startswith("api/datasets/"):
            owner, name, *rest = path.removeprefix("api/datasets/").split("/")
            return self.api(f"{owner}/{name}", rest, form)
        if path.startswith("datasets/"):
            owner, name, _resolve, _revision, *file = path.removeprefix("datasets/").split("/")
            return self.file(f"{owner}/{name}", "/".join(file))
        return self.refuse(404, None)

    do_HEAD = do_POST = do_GET  # noqa: N815

    def api(self, repository, rest, form):
        folder = self.server.repositories.get(repository)
        if folder is None:
            return self.refuse(404, "RepoNotFound")
        files = [facts(folder, path) for path in sorted(folder.rglob("*")) if path.is_file()]
        kind, _revision, *below = rest or ["revision", "main"]
        if kind == "paths-info":
            found = [file for file in files if file["path"] in form.get("paths", [])]
        elif kind == "tree":
            found = listing(folder, "/".join(below), form)
        else:
            siblings = [{"rfilename": file["path"]} for file in files]
            found = {"id": repository, "sha": self.server.commit, "siblings": siblings}
        return self.answer(json.dumps(found).encode(), {"Content-Type": "application/json"})

    def file(self, repository, name):
        path = self.server.repositories.get(repository, Path("/nowhere")) / name
        if not path.is_file():
            return self.refuse(404, "EntryNotFound")
        etag = '"' + facts(path.parent, path)["oid"] + '"'
        return self.answer(path.read_bytes(), {"ETag": etag, "X-Repo-Commit": self.server.commit})

    def answer(self, content, headers):
        found = self.headers.get("Range", "bytes=0-").removeprefix("bytes=").split("-")
        start, end = int(found[0]), int(found[1] or len(content) - 1) + 1
        part = content[start:end]
        self.send_response(206 if "Range" in self.headers else 200)
        if "Range" in self.headers:
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{len(content)}"
        for key, value in {**headers, "Content-Length": str(len(part))}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(part)

    def refuse(self, status, code):
        self.send_response(status)
        if code:
            self.send_header("X-Error-Code", code)
        self.send_header("X-Repo-Commit", self.server.commit)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


def facts(folder, path):
    if path.is_dir():
        name = path.relative_to(folder).as_posix()
        return {"type": "directory", "path": name, "oid": "0" * 40, "size": 0}
    content = path.read_bytes()
    oid = hashlib.sha1(content).hexdigest()
    name = path.relative_to(folder).as_posix()
    return {"type": "file", "path": name, "size": len(content), "oid": oid}


def listing(folder, below, form):
    """Return what is in a folder of a repository, and below it if that is asked for."""
    is_deep = form.get("recursive", ["false"])[0].lower() in ("true", "1")
    paths = sorted((folder / below).rglob("*") if is_deep else (folder / below).glob("*"))
    return [facts(folder, path) for path in paths]


def start(repositories, commit="c" * 40):
    """Start a hub; ``asked`` fills with what it is asked, ``refusal`` makes it refuse."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads, server.block_on_close = True, False
    server.handle_error = lambda *_: None
    server.repositories, server.commit = repositories, commit
    server.asked, server.refusal = [], None
    server.endpoint = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    return server
