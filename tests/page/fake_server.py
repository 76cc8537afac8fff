# SPDX-License-Identifier: Apache-2.0
"""A stand-in for `espalier serve`: the page, one slow stream with a full speculation report, and metrics that move."""
import json
import math
import pathlib
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PAGE = pathlib.Path(__file__).parent.parent.parent / "src/server/page"
SCRIPTS = ["api.js", "sources.js", "tree.js", "metrics.js", "charts.js", "main.js"]
STORY = ("Once upon a time there was a small bird who lived in a tall tree. Every morning the small bird sang, and every "
         "morning the small bird looked for seeds under the tall tree.")
BOUNDS = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1]


def page_html():
    """What src/server/page/embed.cmake makes."""
    script = "".join((PAGE / name).read_text() for name in SCRIPTS)
    return (PAGE / "page.html").read_text().replace("@STYLE@\n", (PAGE / "style.css").read_text()).replace("@SCRIPT@\n", script)


def chunks():
    """The story in steps of one to four tokens, the drafts' sources in turn, each with its tree."""
    words = [word if i == 0 else " " + word for i, word in enumerate(STORY.split(" "))]
    drafters, at, step = ["ngram", "mtp", "eagle3"], 0, 0
    while at < len(words):
        taken = words[at:at + 1 + step % 4]
        source = drafters[step % 3]
        tokens = [{"text": word, "source": source if i + 1 < len(taken) else "target"} for i, word in enumerate(taken)]
        texts, parents, sources, path = ["·"], [-1], [None], [0]
        for i, word in enumerate(taken[:-1]):
            texts += [word, " wrong", " other"]
            parents += [path[-1]] * 3
            sources += [source, drafters[(step + 1) % 3], source]
            path.append(len(texts) - 3)
        texts += [" end", " late"]
        parents += [path[-1], len(texts) - 2]
        sources += [source, source]
        tree = {"texts": texts, "parents": parents, "sources": sources, "path": path}
        yield "".join(taken), {"tokens": tokens, "trees": [tree]}
        at, step = at + len(taken), step + 1


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    chat, key, report, began = True, "", True, time.time()

    def log_message(self, *_):
        pass

    def answer(self, status, body, kind="application/json"):
        data = body.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def refuse(self, status, message):
        self.answer(status, json.dumps({"error": {"message": message, "type": "invalid_request_error"}}))

    def allowed(self):
        if not self.key or self.path == "/" or self.headers.get("Authorization") == f"Bearer {self.key}":
            return True
        self.refuse(401, "an API key is needed")
        return False

    def do_GET(self):
        if not self.allowed():
            return
        if self.path == "/":
            self.answer(200, page_html(), "text/html; charset=utf-8")
        elif self.path == "/v1/models":
            self.answer(200, json.dumps({"object": "list", "data": [{"id": "sapling", "object": "model"}]}))
        elif self.path == "/metrics":
            self.answer(200, self.metrics(), "text/plain")
        else:
            self.refuse(404, f"{self.path}: no such path")

    def metrics(self):
        age = time.time() - self.began
        tokens = 400 * age + 150 * math.sin(age / 3)
        lines = ["# TYPE espalier:x gauge", f'espalier:generation_tokens_total{{engine="0"}} {tokens:.0f}',
                 f"espalier:spec_decode_num_drafts_total {tokens / 2.2:.0f}", f"espalier:spec_decode_num_accepted_tokens_total {tokens - tokens / 2.2:.0f}",
                 f"espalier:requests_running {4 + 3 * math.sin(age / 5):.0f}", f"espalier:requests_prefilling {1 + math.sin(age):.0f}",
                 f"espalier:num_requests_waiting {max(0, 2 * math.sin(age / 7)):.0f}", f"espalier:kv_cache_usage_perc {0.4 + 0.2 * math.sin(age / 9)}"]
        for name in ("inter_token_latency_seconds", "time_to_first_token_seconds"):
            for i, bound in enumerate(BOUNDS + ["+Inf"]):
                lines.append(f'espalier:{name}_bucket{{le="{bound}"}} {tokens * min(1, (i + 1) / 6):.0f}')
        return "\n".join(lines) + "\n"

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not self.allowed():
            return
        if self.path == "/apply-template":
            return self.answer(200, "{}") if self.chat else self.refuse(400, "the model has no chat template")
        if self.path not in ("/v1/completions", "/v1/chat/completions"):
            return self.refuse(404, f"{self.path}: no such path")
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Connection", "close")
        self.end_headers()
        try:
            self.stream(self.path == "/v1/chat/completions", body)
        except (BrokenPipeError, ConnectionResetError):
            self.server.cut_off.set()
        self.close_connection = True

    def event(self, content):
        self.wfile.write(f"data: {content if isinstance(content, str) else json.dumps(content)}\n\n".encode())
        self.wfile.flush()

    def stream(self, chat, body):
        count = 0
        for text, report in chunks():
            choice = {"index": 0, "finish_reason": None, **({"delta": {"content": text}} if chat else {"text": text})}
            if body.get("speculation_report") and self.report:
                choice["speculation"] = report
            count += len(report["tokens"])
            self.event({"choices": [choice], "usage": None})
            time.sleep(0.12)
        self.event({"choices": [{"index": 0, "delta": {}, "text": "", "finish_reason": "stop"}], "usage": None})
        self.event({"choices": [], "usage": {"completion_tokens": count, "completion_tokens_details": {"accepted_prediction_tokens": count // 2}}})
        self.event("[DONE]")


def start(**settings):
    """The server's address, and the server, whose event cut_off says that a client went away mid-stream."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Settled", (Handler,), settings))
    server.cut_off = threading.Event()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_address[1]}", server
