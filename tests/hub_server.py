"""A server on loopback that speaks the part of the Hub that pushing and loading a model needs."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Hub:
    """Start with `with Hub() as hub`; `hub.endpoint` is its address, `hub.repos` holds {repo: {path: bytes}}."""

    def __init__(self) -> None:
        self.repos: dict[str, dict[str, bytes]] = {}
        self.tokens: set[str | None] = set()
        hub = self

        class Handler(_Handler):
            pass

        Handler.hub = hub
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self.server.server_port}"

    def __enter__(self) -> Hub:
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self.server.shutdown()
        self.server.server_close()

    def commit(self, repo: str) -> str:
        digest = hashlib.sha1()
        for path, content in sorted(self.repos[repo].items()):
            digest.update(path.encode() + content)
        return digest.hexdigest()


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *args: Any) -> None:
        pass

    def _reply(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _json(self, content: Any, status: int = 200) -> None:
        self._reply(status, json.dumps(content).encode(), Content_Type="application/json")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        hub, path = self.hub, self.path.split("?")[0]
        hub.tokens.add(self.headers.get("Authorization"))
        if path == "/api/repos/create":
            wanted = json.loads(body)
            repo = f"{wanted.get('organization') or 'someone'}/{wanted['name']}"
            hub.repos.setdefault(repo, {})
            self._json({"url": f"{hub.endpoint}/{repo}", "id": repo, "name": repo})
        elif path == "/api/validate-yaml":
            self._json({"errors": [], "warnings": []})
        elif match := re.fullmatch(r"/api/models/(.+?/.+?)/preupload/main", path):
            files = json.loads(body)["files"]
            modes = [{"path": f["path"], "uploadMode": "regular", "shouldIgnore": False, "oid": None} for f in files]
            self._json({"files": modes})
        elif match := re.fullmatch(r"/api/models/(.+?/.+?)/commit/main", path):
            repo = match.group(1)
            for line in body.decode().splitlines():
                item = json.loads(line)
                if item["key"] == "file":
                    assert item["value"]["encoding"] == "base64"
                    hub.repos[repo][item["value"]["path"]] = base64.b64decode(item["value"]["content"])
            oid = hub.commit(repo)
            self._json({"success": True, "commitOid": oid, "commitUrl": f"{hub.endpoint}/{repo}/commit/{oid}"})
        else:
            self._json({"error": f"unknown {path}"}, 404)

    def do_GET(self) -> None:
        hub, path = self.hub, self.path.split("?")[0]
        if match := re.fullmatch(r"/(.+?/.+?)/resolve/([^/]+)/(.+)", path):
            repo, _, name = match.groups()
            content = hub.repos.get(repo, {}).get(name)
            if content is None:
                self._reply(404, X_Error_Code="EntryNotFound")
            else:
                tag = hashlib.sha1(content).hexdigest()
                self._reply(200, content, ETag=f'"{tag}"', X_Repo_Commit=hub.commit(repo))
        elif match := re.fullmatch(r"/api/models/(.+?/.+?)/tree/[^/]+(/.*)?", path):
            files = hub.repos.get(match.group(1), {})
            self._json([{"type": "file", "path": name, "size": len(c), "oid": "0"} for name, c in files.items()])
        elif (match := re.fullmatch(r"/api/models/([^/]+/[^/]+)(/revision/[^/]+)?", path)) and match.group(1) in hub.repos:
            repo = match.group(1)
            siblings = [{"rfilename": name} for name in hub.repos[repo]]
            self._json({"id": repo, "modelId": repo, "sha": hub.commit(repo), "siblings": siblings, "private": False})
        else:
            self._reply(404, X_Error_Code="EntryNotFound")

    do_HEAD = do_GET
