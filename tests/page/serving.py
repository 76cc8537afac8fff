# SPDX-License-Identifier: Apache-2.0
"""Starts `espalier serve` on a free port, and ends it with the block."""
import contextlib
import re
import signal
import subprocess
import threading
import urllib.request


@contextlib.contextmanager
def serving(binary, model, *flags):
    """The address of a server that is ready."""
    process = subprocess.Popen([binary, "serve", model, "--port", "0", *flags], stderr=subprocess.PIPE, text=True)
    lines = []
    address = None
    try:
        for line in process.stderr:
            lines.append(line)
            found = re.search(r"listening on (http://\S+)", line)
            address = found.group(1) if found else address
            if " is ready after " in line:
                break
        else:
            raise RuntimeError("the server ended:\n" + "".join(lines))
        rest = threading.Thread(target=lambda: [None for _ in process.stderr], daemon=True)  # so that it never waits for a reader
        rest.start()
        yield address
        process.send_signal(signal.SIGTERM)
        if process.wait(120) != 0:
            raise RuntimeError(f"the server ended with {process.returncode}")
    finally:
        process.kill()
        process.wait()


def metric(address, name):
    """The sum of a metric over its labels."""
    with urllib.request.urlopen(address + "/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if re.match(rf"espalier:{name}[{{ ]", line))
