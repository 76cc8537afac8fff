#!/usr/bin/env python3
"""Measures a server: many streams at once, and what serving costs beside the engine.

    tools/measure_server.py streams build/cpu/espalier models/sapling --draft models/sapling-eagle3
    tools/measure_server.py cost    build/cpu/espalier models/sapling --draft models/sapling-eagle3
    tools/measure_server.py stalls  build/cpu/espalier models/sapling --draft models/sapling-eagle3
    tools/measure_server.py schemas build/cpu/espalier models/sapling --draft models/sapling-eagle3
    tools/measure_server.py bombs   build/cpu/espalier models/sapling --draft models/sapling-eagle3

streams: opens STREAMS connections, then sends one request on each, with a prompt and a seed of its own. Every stream must
    end with [DONE] and hold the text that a second server, without speculation, gives to the same request alone; some are
    compared with `espalier generate` too. Exits with 1 otherwise. Prints the server's peak memory.
cost: CPU seconds of the server per generated token at CLIENTS clients over those of `bench engine` with the same prompts,
    in turn, ROUNDS times; medians, and the time to the first token of both.
stalls: seven clients stream while an eighth sends prompts of 1,500 tokens, one after the other: the time between tokens of
    the streams, and the prompts' rate, for several --step-tokens.
schemas: tokens/s of eight clients whose answers are held to a JSON schema over those of eight without, in turn, ROUNDS
    times, without drafts and with all of them.
bombs: the time between tokens of seven streams, alone and while an eighth client sends schemas and expressions that are
    refused; the longest time to a refusal. Exits with 1 if one is not refused.
"""
import argparse
import asyncio
import json
import os
import pathlib
import re
import resource
import signal
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
TOKENS = 16


def stream_body(number):
    return {"prompt": f"# {number}\ndef f{number}(x):\n    ", "max_tokens": TOKENS, "seed": number,
            "temperature": 0.8, "stream": True, "ignore_eos": True}


class Server:
    def __init__(self, options, *flags):
        command = [options.espalier, "serve", options.model, "--port", "0", *flags]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        self.port = 0
        for line in self.process.stderr:
            found = re.search(r"http://127\.0\.0\.1:(\d+)", line)
            if found:
                self.port = int(found.group(1))
                break
        if not self.port:
            sys.exit(f"{' '.join(command)}: no address")
        self.wait_until_ready()

    def wait_until_ready(self):
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            status = asyncio.run(get(self.port, "/health"))
            if status == 200:
                return
            time.sleep(0.05)
        sys.exit("the server is not ready after a minute")

    def cpu_seconds(self):
        fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def peak_mebibytes(self):
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmHWM:\s+(\d+) kB", status).group(1)) / 1024

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.stderr.read()
        return self.process.wait()


async def get(port, path):
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n\r\n".encode())
        line = await reader.readline()
        writer.close()
        return int(line.split()[1])
    except (OSError, IndexError, ValueError):
        return 0


async def complete(port, body, connected=None, started=None, times=None):
    """The text, the seconds to its first piece, and whether the stream ended with [DONE]. times: of all pieces."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    if connected is not None:
        connected.release()
        await started.wait()
    data = json.dumps(body).encode()
    begin = time.monotonic()
    writer.write(f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
                 f"Content-Length: {len(data)}\r\nConnection: close\r\n\r\n".encode() + data)
    text, first, done = "", None, False
    while line := await reader.readline():
        if not line.startswith(b"data: "):
            continue
        if line.strip() == b"data: [DONE]":
            done = True
            break
        choices = json.loads(line[6:]).get("choices")
        if choices:
            now = time.monotonic()
            first = first or now - begin
            if times is not None:
                times.append(now)
            text += choices[0]["text"]
    writer.close()
    return text, first, done


async def all_at_once(port, bodies):
    connected, started = asyncio.Semaphore(0), asyncio.Event()
    tasks = [asyncio.create_task(complete(port, body, connected, started)) for body in bodies]
    for _ in bodies:
        await connected.acquire()
    started.set()
    return await asyncio.gather(*tasks)


async def clients(port, bodies, count):
    """`count` clients, each with its next request as soon as its last is answered."""
    left = list(reversed(bodies))
    results = []

    async def client():
        while left:
            results.append(await complete(port, left.pop()))
    await asyncio.gather(*(client() for _ in range(count)))
    return results


def generated(options, body):
    out = subprocess.run([options.espalier, "generate", options.model, "-p", body["prompt"], "-n", str(TOKENS), "--seed",
                          str(body["seed"]), "--temperature", "0.8", "--ignore-eos", "--json", "--speculate", "off"],
                         capture_output=True, text=True, check=True).stdout
    return json.loads(out)["text"]


def streams(options):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < options.streams + 100:
        sys.exit(f"this machine allows {hard} open files, {options.streams} streams need more")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    bodies = [stream_body(number) for number in range(options.streams)]
    limits = ["--max-connections", str(options.streams + 100), "--max-waiting", str(options.streams)]
    server = Server(options, "--speculate", "auto", "--draft", options.draft, *limits)
    idle = server.peak_mebibytes()
    begin = time.monotonic()
    results = asyncio.run(all_at_once(server.port, bodies))
    seconds = time.monotonic() - begin
    peak = server.peak_mebibytes()
    ended = server.stop()
    plain = Server(options, "--speculate", "off")
    expected = asyncio.run(clients(plain.port, bodies, 1))
    plain.stop()
    lost = sum(not done for _, _, done in results)
    other = sum(got[0] != wanted[0] for got, wanted in zip(results, expected))
    sample = range(0, options.streams, max(options.streams // 20, 1))
    unlike = sum(generated(options, bodies[i]) != results[i][0] for i in sample)
    print(f"{options.streams} streams at once: {lost} lost, {other} with another text than alone, "
          f"{unlike} of {len(sample)} unlike espalier generate")
    print(f"{options.streams * TOKENS / seconds:.0f} tokens/s; peak memory {peak:.0f} MiB, {idle:.0f} when ready; "
          f"exit {ended}")
    return 1 if lost or other or unlike or ended else 0


def cost(options):
    prompts = [{"prompt": json.loads(line)["prompt"]}
               for line in (ROOT / "data/prompts/benchmark.jsonl").read_text().splitlines()[:options.requests]]
    file = pathlib.Path(options.scratch, "prompts.jsonl")
    file.write_text("".join(json.dumps(one) + "\n" for one in prompts))
    bodies = [{**one, "max_tokens": 64, "seed": i, "temperature": 0.8, "stream": True, "ignore_eos": True}
              for i, one in enumerate(prompts)]
    tokens = 64 * len(bodies)
    ratios, firsts, engine_firsts = [], [], []
    for _ in range(options.rounds):
        server = Server(options, "--speculate", "off", "--rows", str(options.clients))
        before = server.cpu_seconds()
        results = asyncio.run(clients(server.port, bodies, options.clients))
        served = (server.cpu_seconds() - before) / tokens
        server.stop()
        firsts.append(statistics.median(first for _, first, _ in results))
        command = [options.espalier, "bench", "engine", options.model, "--prompts", str(file), "--requests",
                   str(len(bodies)), "--output", "64", "--temperature", "0.8", "--concurrency", str(options.clients),
                   "--speculate", "off", "-o", "json"]
        empty = command[:]
        empty[empty.index("--requests") + 1] = "1"
        empty[empty.index("--output") + 1] = "1"
        start, _ = cpu_of(empty)
        whole, out = cpu_of(command)
        engine_firsts.append(json.loads(out)[0]["first token p50 ms"] / 1000)
        ratios.append(served / ((whole - start) / tokens))
        print(f"server {1e6 * served:.0f} µs CPU per token, engine {1e6 * (whole - start) / tokens:.0f}: "
              f"{ratios[-1]:.3f}", flush=True)
    print(f"median {statistics.median(ratios):.3f} of {len(ratios)}; first token after "
          f"{1000 * statistics.median(firsts):.1f} ms, in bench engine {1000 * statistics.median(engine_firsts):.1f} ms")
    return 0


async def streams_beside(port, seconds, once=None):
    """The gaps between tokens of seven streams, in order of length, while `once` is awaited again and again with 0, 1, …; how often."""
    end = time.monotonic() + seconds
    gaps, count = [], 0

    async def stream(number):
        while time.monotonic() < end:
            times = []
            await complete(port, {**stream_body(number), "max_tokens": 128}, times=times)
            gaps.extend(later - sooner for sooner, later in zip(times, times[1:]))
            number += 7

    async def beside():
        nonlocal count
        while once is not None and time.monotonic() < end:
            await once(count)
            count += 1
    await asyncio.gather(beside(), *(stream(number) for number in range(7)))
    return sorted(gaps), count


def at_share(gaps, share):
    return 1000 * gaps[int(share * (len(gaps) - 1))]


async def post(port, body):
    """Status, answer and seconds of one chat completion."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    begin = time.monotonic()
    writer.write(f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
                 f"Content-Length: {len(data)}\r\nConnection: close\r\n\r\n".encode() + data)
    answer = await reader.read()
    writer.close()
    head, _, text = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(text), time.monotonic() - begin


def chat_body(number, **more):
    return {"messages": [{"role": "user", "content": f"Question {number}"}], "max_tokens": 96, "seed": number,
            "temperature": 0.8, **more}


def long_schema():
    """No text that it allows is shorter than some hundred tokens."""
    names = ["identifier", "description", "created_at", "is_active", "measurements"]
    item = {"type": "object", "additionalProperties": False, "required": names,
            "properties": {"identifier": {"type": "integer"}, "description": {"type": "string"},
                           "created_at": {"type": "string", "format": "date"}, "is_active": {"type": "boolean"},
                           "measurements": {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 4}}}
    return {"type": "array", "items": item, "minItems": 40}


def schemas(options):
    held = {"response_format": {"type": "json_schema",
                                "json_schema": {"name": "records", "strict": True, "schema": long_schema()}}}
    for drafts in (["--speculate", "off"], ["--speculate", "auto", "--draft", options.draft]):
        server = Server(options, *drafts, "--rows", "8")
        ratios = []

        async def rate(more):
            begin = time.monotonic()
            answers = await asyncio.gather(*(post(server.port, chat_body(number, **more)) for number in range(8)))
            wrong = [answer for status, answer, _ in answers if status != 200]
            if wrong:
                sys.exit(f"not answered: {wrong[0]}")
            return sum(answer["usage"]["completion_tokens"] for _, answer, _ in answers) / (time.monotonic() - begin)

        asyncio.run(rate(held))  # compiled once
        for _ in range(options.rounds):
            without, within = asyncio.run(rate({"ignore_eos": True})), asyncio.run(rate(held))
            ratios.append(within / without)
            print(f"{' '.join(drafts[:2])}: {within:.0f} tokens/s held to a schema, {without:.0f} without: {ratios[-1]:.3f}",
                  flush=True)
        print(f"median {statistics.median(ratios):.3f} of {len(ratios)}")
        server.stop()
    return 0


def bombs(options):
    nested = {"type": "object"}
    for _ in range(200):
        nested = {"type": "object", "properties": {"a": nested}}
    sent = {
        "a $ref to itself": {"response_format": {"type": "json_schema", "json_schema": {
            "name": "x", "schema": {"$ref": "#"}}}},
        "2^60 alternatives": {"regex": "(a|a)" * 60 + "(((((a{99}){99}){99}){99}){99})"},
        "10 MB": {"response_format": {"type": "json_schema", "json_schema": {
            "name": "x", "schema": {"enum": ["x" * 100 + str(i) for i in range(95_000)]}}}},
        "200 deep": {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": nested}}},
    }
    bodies = {name: json.dumps(chat_body(0, **more)).encode() for name, more in sent.items()}
    server = Server(options, "--speculate", "off", "--rows", "8")
    longest, taken = {name: 0.0 for name in bodies}, []

    async def send(count):
        name = list(bodies)[count % len(bodies)]
        status, answer, seconds = await post(server.port, bodies[name])
        longest[name] = max(longest[name], seconds)
        if status < 400 or status >= 500:
            taken.append((name, status, answer))

    for what, once in (("alone", None), ("beside bombs", send)):
        gaps, count = asyncio.run(streams_beside(server.port, options.seconds, once))
        print(f"streams {what}: between tokens p50 {at_share(gaps, 0.5):.1f} ms, p99 {at_share(gaps, 0.99):.1f}, longest "
              f"{at_share(gaps, 1):.0f}; {len(gaps) / options.seconds:.0f} tokens/s; {count} bombs", flush=True)
    for name, seconds in longest.items():
        print(f"{name}: refused within {1000 * seconds:.0f} ms")
    server.stop()
    for name, status, answer in taken[:3]:
        print(f"{name}: {status} {answer}")
    return 1 if taken else 0


def stalls(options):
    print("| --step-tokens | between tokens p50 ms | p99 | longest | long prompts/s | tokens/s of the streams |")
    print("|---|---|---|---|---|---|")
    for step_tokens in ("520", "768", "1024", "2048"):
        server = Server(options, "--speculate", "off", "--rows", "8", "--step-tokens", step_tokens)

        async def send_prompt(count):
            # No two alike: a prompt that is known already costs nothing.
            tokens = [100 + (count * 7 + i * i) % 3000 for i in range(1500)]
            await complete(server.port, {"prompt": tokens, "max_tokens": 1, "stream": True})

        gaps, prompts = asyncio.run(streams_beside(server.port, options.seconds, send_prompt))
        server.stop()
        at = [at_share(gaps, share) for share in (0.5, 0.99, 1)]
        print(f"| {step_tokens} | {at[0]:.1f} | {at[1]:.0f} | {at[2]:.0f} | {prompts / options.seconds:.1f} "
              f"| {len(gaps) / options.seconds:.0f} |", flush=True)
    return 0


def cpu_of(command):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, out


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["streams", "cost", "stalls", "schemas", "bombs"])
    parser.add_argument("espalier")
    parser.add_argument("model")
    parser.add_argument("--draft", required=True)
    parser.add_argument("--streams", type=int, default=2000)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--requests", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=15)
    parser.add_argument("--scratch", default="/tmp")
    options = parser.parse_args()
    sys.exit({"streams": streams, "cost": cost, "stalls": stalls, "schemas": schemas, "bombs": bombs}[options.what](options))


if __name__ == "__main__":
    main()
