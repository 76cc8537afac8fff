# SPDX-License-Identifier: Apache-2.0
"""A hub of models on this machine, in Hugging Face's protocol, and what can go wrong with one.

A large file lies on another origin (the same machine's other port), to which the hub redirects with a signed address, as hubs do.
"""

import hashlib
import http.server
import json
import re
import threading
import urllib.parse

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def git_blob(data):
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


class File:
    def __init__(self, data, large=None):
        self.data = data
        self.large = len(data) > 2000 if large is None else large
        self.etag = hashlib.sha256(data).hexdigest() if self.large else git_blob(data)


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_):
        pass

    def answer(self, status, body=b"", **headers):
        self.send_response(status)
        headers.setdefault("Content-Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def end(self):
        """The connection is cut."""
        self.wfile.flush()
        self.close_connection = True
        self.connection.shutdown(2)

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        server = self.server
        address = urllib.parse.urlsplit(self.path)
        with server.hub.lock:
            server.hub.requests.append((server.origin, self.command, self.path, self.headers.get("Range"),
                                        self.headers.get("Authorization")))
            number = server.hub.count(address.path)
        if fault := server.hub.faults.get((server.origin, address.path)):
            if fault(self, number) is not None:
                return
        if server.origin == "cdn":
            return self.content(address)
        if found := re.fullmatch(r"/api/models/([\w.-]+/[\w.-]+)/revision/(.+)", address.path):
            return self.listing(found.group(1), urllib.parse.unquote(found.group(2)))
        if found := re.fullmatch(r"/([\w.-]+/[\w.-]+)/resolve/(\w+)/(.+)", address.path):
            return self.resolve(*found.groups())
        self.answer(404)

    def listing(self, name, revision):
        hub = self.server.hub
        if hub.token and self.headers.get("Authorization") != f"Bearer {hub.token}":
            return self.answer(401)
        if name != hub.name or revision not in ("main", "v1", "refs/pr/1", "pr/1", COMMIT):
            return self.answer(404)
        listing = {"id": name, "sha": COMMIT, "siblings": [{"rfilename": file} for file in hub.files] + hub.more}
        self.answer(200, json.dumps(listing).encode(), Content_Type="application/json")

    def resolve(self, name, commit, file):
        hub = self.server.hub
        if hub.token and self.headers.get("Authorization") != f"Bearer {hub.token}":
            return self.answer(401)
        if name != hub.name or commit != COMMIT or file not in hub.files:
            return self.answer(404)
        found = hub.files[file]
        if not found.large:
            return self.piece(found, ETag=f'"{found.etag}"', X_Repo_Commit=COMMIT)
        self.answer(302, b"moved", Location=f"{hub.cdn}/{found.etag}?signature=secret%2F{hub.signature}",
                    X_Linked_Etag=f'"{found.etag}"', X_Linked_Size=str(len(found.data)), X_Repo_Commit=COMMIT)

    def content(self, address):
        hub = self.server.hub
        if address.query != f"signature=secret%2F{hub.signature}":
            return self.answer(403)
        for file in hub.files.values():
            if address.path == "/" + file.etag:
                return self.piece(file)
        self.answer(404)

    def piece(self, file, **headers):
        data = file.data
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range") or "")
        if not asked or not self.server.hub.ranges:
            return self.answer(200, data, **headers)
        first, last = int(asked.group(1)), int(asked.group(2))
        self.answer(206, data[first:last + 1], Content_Range=f"bytes {first}-{last}/{len(data)}", **headers)


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, hub, origin, tls):
        super().__init__(("127.0.0.1", 0), Handler)
        self.hub, self.origin, self.scheme = hub, origin, "https" if tls else "http"
        if tls:
            self.socket = tls.wrap_socket(self.socket, server_side=True)
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    def handle_error(self, *_):
        pass

    @property
    def url(self):
        return f"{self.scheme}://127.0.0.1:{self.server_address[1]}"


class Hub:
    """faults: by ("hub" or "cdn", path) a function of the handler and of how often that path was asked for; None: go on."""

    def __init__(self, files, name="org/model", tls=None, cdn_tls=None):
        self.files, self.name = files, name
        self.more = []
        self.token, self.signature, self.ranges = None, "1", True
        self.faults, self.requests, self.counts = {}, [], {}
        self.lock = threading.Lock()
        self.servers = [Server(self, "hub", tls), Server(self, "cdn", cdn_tls)]
        self.url, self.cdn = (server.url for server in self.servers)

    def count(self, path):
        self.counts[path] = self.counts.get(path, 0) + 1
        return self.counts[path]

    def path(self, file):
        return f"/{self.name}/resolve/{COMMIT}/{file}"

    def stop(self):
        for server in self.servers:
            server.shutdown()
            server.server_close()
