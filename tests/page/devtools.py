# SPDX-License-Identifier: Apache-2.0
"""Drives a headless Chromium through its DevTools protocol. Python's standard library alone."""
import base64
import json
import os
import pathlib
import shutil
import socket
import struct
import subprocess
import tempfile
import time
import urllib.request


class WebSocket:
    """The client's side of RFC 6455, for text messages."""

    def __init__(self, url, timeout_seconds):
        host, _, path = url.removeprefix("ws://").partition("/")
        name, _, port = host.partition(":")
        self.socket = socket.create_connection((name, int(port)), timeout_seconds)
        key = base64.b64encode(os.urandom(16)).decode()
        self.socket.sendall((f"GET /{path} HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                             f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n").encode())
        self.buffer = b""
        while b"\r\n\r\n" not in self.buffer:
            self.buffer += self.socket.recv(4096)
        head, self.buffer = self.buffer.split(b"\r\n\r\n", 1)
        if b" 101 " not in head.split(b"\r\n")[0]:
            raise RuntimeError(head.decode())

    def send(self, text):
        data, mask = text.encode(), os.urandom(4)
        size = len(data)
        head = bytes([0x81]) + (bytes([0x80 | size]) if size < 126 else bytes([0xFE]) + struct.pack(">H", size)
                                if size < 65536 else bytes([0xFF]) + struct.pack(">Q", size))
        self.socket.sendall(head + mask + bytes(b ^ mask[i % 4] for i, b in enumerate(data)))

    def take(self, count):
        while len(self.buffer) < count:
            more = self.socket.recv(65536)
            if not more:
                raise EOFError("the browser closed its connection")
            self.buffer += more
        taken, self.buffer = self.buffer[:count], self.buffer[count:]
        return taken

    def receive(self):
        text = b""
        while True:
            first, second = self.take(2)
            size = second & 0x7F
            if size == 126:
                size, = struct.unpack(">H", self.take(2))
            elif size == 127:
                size, = struct.unpack(">Q", self.take(8))
            data = self.take(size)
            if first & 0x0F in (0, 1):
                text += data
                if first & 0x80:
                    return text.decode()


class Browser:
    """One page of a headless Chromium. Remembers what it asked for and what went wrong in it."""

    def __init__(self, timeout_seconds=120):
        program = next(filter(None, map(shutil.which, ["chromium", "chromium-browser", "google-chrome"])), None)
        if not program:
            raise RuntimeError("no chromium in PATH")
        self.timeout_seconds = timeout_seconds
        self.profile = tempfile.TemporaryDirectory()
        self.process = subprocess.Popen(
            [program, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run", "--disable-extensions",
             "--disable-background-networking", "--disable-component-update", "--remote-debugging-port=0",
             f"--user-data-dir={self.profile.name}", "about:blank"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        ready = pathlib.Path(self.profile.name) / "DevToolsActivePort"
        self.wait(lambda: ready.exists() and ready.read_text().count("\n") >= 1, "the browser's start")
        port = ready.read_text().split()[0]
        pages = json.load(urllib.request.urlopen(f"http://127.0.0.1:{port}/json"))
        target = next(page for page in pages if page["type"] == "page")
        self.socket = WebSocket(target["webSocketDebuggerUrl"], timeout_seconds)
        self.last_id = 0
        self.requests, self.errors = [], []
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def wait(self, condition, what):
        end = time.monotonic() + self.timeout_seconds
        while not condition():
            if time.monotonic() > end:
                raise TimeoutError(f"{what}: not within {self.timeout_seconds} s")
            time.sleep(0.05)

    def send(self, method, **parameters):
        self.last_id += 1
        self.socket.send(json.dumps({"id": self.last_id, "method": method, "params": parameters}))
        return self.last_id

    def call(self, method, **parameters):
        asked = self.send(method, **parameters)
        while True:
            message = json.loads(self.socket.receive())
            if message.get("id") == asked:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']}")
                return message["result"]
            self.note(message)

    def note(self, message):
        method, parameters = message.get("method"), message.get("params", {})
        if method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])
        elif method == "Fetch.requestPaused":
            self.send("Fetch.fulfillRequest", requestId=parameters["requestId"], responseCode=200, body=base64.b64encode(self.instead.encode()).decode(),
                      responseHeaders=[{"name": "Content-Type", "value": "text/html; charset=utf-8"}])
        elif method == "Runtime.exceptionThrown":
            self.errors.append(parameters["exceptionDetails"].get("exception", {}).get("description", "exception"))
        elif method == "Log.entryAdded" and parameters["entry"]["level"] == "error":
            self.errors.append(parameters["entry"]["text"] + " " + parameters["entry"].get("url", ""))

    def evaluate(self, script):
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(result["exceptionDetails"]["exception"].get("description", script))
        return result["result"].get("value")

    def wait_for(self, script):
        self.wait(lambda: self.evaluate(script), script)

    def type(self, text):
        self.call("Input.insertText", text=text)

    def press(self, key, code):
        text = {"text": "\r"} if key == "Enter" else {}
        self.call("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", key=key, code=key, windowsVirtualKeyCode=code, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, code=key, windowsVirtualKeyCode=code)

    def put_in_place(self, url, page):
        """This page instead of the server's, until the next call with an empty one."""
        self.instead = page
        if page:
            self.call("Fetch.enable", patterns=[{"urlPattern": url}])
        else:
            self.call("Fetch.disable")

    def choose_file(self, selector, path):
        found = self.call("Runtime.evaluate", expression=f"document.querySelector({json.dumps(selector)})")["result"]["objectId"]
        self.call("DOM.setFileInputFiles", files=[str(path)], objectId=found)

    def look(self, width, height, dark=False, mobile=False):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])

    def screenshot(self, path):
        image = self.call("Page.captureScreenshot", format="png")["data"]
        path.write_bytes(base64.b64decode(image))

    def close(self):
        self.process.terminate()
        self.process.wait(10)
        self.profile.cleanup()
