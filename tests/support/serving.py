"""A server for tests in Python: espalier serve on a free port, which its log names."""

import atexit
import json
import os
import re
import subprocess
import threading
import time
import urllib.error
import urllib.request


def generated(binary, model, prompt, tokens, seed, temperature):
    """What `espalier generate` goes on with."""
    words = [binary, "generate", model, "-n", str(tokens), "--seed", str(seed), "--temperature", str(temperature), "--special", "-p", prompt]
    text = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    assert text.startswith(prompt) and text.endswith("\n"), text
    return text.removeprefix(prompt).removesuffix("\n").removesuffix("<｜end▁of▁sentence｜>")


class Server:
    """Ready when made; `stop` ends it and gives its exit status. The command is the binary, or words that end in it."""

    def __init__(self, command, model, *flags, environment=None):
        self.log = []
        self.process = subprocess.Popen(
            [*([command] if isinstance(command, str) else command), "serve", *([model] if model else []), "--port", "0", *flags],
            stderr=subprocess.PIPE, text=True, env=os.environ | (environment or {}))
        atexit.register(self.process.kill)  # a test that fails leaves its server
        for line in self.process.stderr:
            self.log.append(line)
            if found := re.search(r"listening on (https?)://[^\s\"]+:(\d+)", line):
                self.root = f"{found.group(1)}://127.0.0.1:{found.group(2)}"
            if "is ready" in line:
                break
        else:
            raise RuntimeError("the server ended before it was ready:\n" + "".join(self.log))
        # A log that nobody reads would fill its pipe, and the server would wait.
        self.reader = threading.Thread(target=lambda: self.log.extend(self.process.stderr), daemon=True)
        self.reader.start()

    def stop(self):
        self.process.terminate()
        status = self.process.wait()
        self.reader.join()
        self.process.stderr.close()
        return status

    def get(self, path, key=None):
        request = urllib.request.Request(self.root + path, headers={"Authorization": f"Bearer {key}"} if key else {})
        with urllib.request.urlopen(request) as answer:
            return answer.read().decode()

    def post(self, path, **body):
        """The status of the answer, after all of it was read."""
        request = urllib.request.Request(self.root + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request) as answer:
                answer.read()
                return answer.status
        except urllib.error.HTTPError as error:
            return error.code

    def metric(self, name, key=None):
        """The sum of its series, 0 where there is none yet."""
        found = re.findall(rf"^espalier:{name}{{[^\n]*}} (\S+)$", self.get("/metrics", key), re.MULTILINE)
        return sum(map(float, found))

    def wait_until_idle(self, key=None):
        """Nothing runs and nothing waits. Requests in tests would run for minutes: idle means that they were ended."""
        for _ in range(3000):
            if self.metric("num_requests_running", key) + self.metric("num_requests_waiting", key) == 0:
                return
            time.sleep(0.02)
        raise AssertionError("requests ran on:\n" + self.get("/metrics", key))
