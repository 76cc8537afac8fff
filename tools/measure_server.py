#!/usr/bin/env python3
"""Measures the server: the numbers of docs/server.md.

    tools/measure_server.py cpu  build/cpu/espalier models/sapling   # CPU time per token, beside `bench engine`
    tools/measure_server.py gaps build/cpu/espalier models/sapling   # time between tokens while long prompts arrive, by --step-tokens

Both take turns round by round and report medians of rounds, so that other load on the machine meets all of them alike.
"""
import argparse
import asyncio
import json
import pathlib
import random
import resource
import statistics
import subprocess
import sys
import time

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent / "tests/page"))
from serving import serving

CLIENTS, PROMPT, OUTPUT = 32, 128, 64
STREAMS, LONG_PROMPT, STEP_TOKENS = 8, 1800, [544, 768, 1024, 2048]


async def stream(port, body, on_event=lambda: None):
    """One streamed completion; the seconds to its first event."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    data = json.dumps({**body, "stream": True}).encode()
    began = time.perf_counter()
    writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nConnection: close\r\n"
                 + f"Content-Length: {len(data)}\r\n\r\n".encode() + data)
    first, whole = None, b""
    async for line in reader:
        whole += line
        if line.startswith(b"data: {"):
            first = first or time.perf_counter() - began
            on_event()
    writer.close()
    if not whole.startswith(b"HTTP/1.1 200") or b"data: [DONE]" not in whole:
        sys.exit(whole.decode())
    return first


def random_body(rng, prompt, output):
    return {"prompt": [rng.randrange(8, 4000) for _ in range(prompt)], "max_tokens": output, "ignore_eos": True, "temperature": 1.0,
            "top_p": 1.0, "seed": rng.randrange(1 << 30)}


def cpu_seconds(process):
    fields = pathlib.Path(f"/proc/{process}/stat").read_text().rsplit(") ", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / 100


async def load(port, requests, rng):
    bodies = [random_body(rng, PROMPT, OUTPUT) for _ in range(requests)]
    firsts = []

    async def client():
        while bodies:
            firsts.append(await stream(port, bodies.pop()))
    await asyncio.gather(*(client() for _ in range(CLIENTS)))
    return statistics.median(firsts)


def engine_cpu(arguments, requests):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([arguments.binary, "bench", "engine", arguments.model, "--requests", str(requests), "--concurrency", str(CLIENTS),
                    "--prompt", str(PROMPT), "--output", str(OUTPUT), "--temperature", "1", "--speculate", arguments.speculate],
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure_cpu(arguments):
    few, many = CLIENTS, CLIENTS * 5
    tokens = (many - few) * OUTPUT
    rng = random.Random(1)
    rows = []
    for _ in range(arguments.rounds):
        with serving(arguments.binary, arguments.model, "--speculate", arguments.speculate) as server:
            asyncio.run(load(server.port, few, rng))
            before = cpu_seconds(server.process)
            first = asyncio.run(load(server.port, many - few, rng))
            served = (cpu_seconds(server.process) - before) / tokens
        engine = (engine_cpu(arguments, many) - engine_cpu(arguments, few)) / tokens  # loading and warming up fall out
        rows.append((served, engine, served / engine, first))
        print(f"server {1e6 * served:.0f} µs, engine {1e6 * engine:.0f} µs of CPU per token, ratio {served / engine:.3f}, "
              f"median first token {1e3 * first:.0f} ms", flush=True)
    print(f"median ratio {statistics.median(row[2] for row in rows):.3f}")


async def gaps_of(port, rng, seconds):
    """Gaps between events of STREAMS streams, and first tokens of long prompts that follow one another."""
    end = time.perf_counter() + seconds
    gaps, firsts = [], []

    async def write():
        while time.perf_counter() < end:
            last = [None]

            def event():
                now = time.perf_counter()
                if last[0] is not None:
                    gaps.append(now - last[0])
                last[0] = now
            await stream(port, random_body(rng, 16, 400), event)

    async def arrive():
        while time.perf_counter() < end:
            firsts.append(await stream(port, random_body(rng, LONG_PROMPT, 1)))
    await asyncio.gather(*(write() for _ in range(STREAMS)), arrive())
    return gaps, firsts


def quantile(values, share):
    values = sorted(values)
    return values[min(len(values) - 1, int(share * len(values)))]


def measure_gaps(arguments):
    rng = random.Random(2)
    rows = {step: [] for step in STEP_TOKENS}
    for number in range(arguments.rounds):
        for step in STEP_TOKENS if number % 2 == 0 else STEP_TOKENS[::-1]:
            with serving(arguments.binary, arguments.model, "--speculate", arguments.speculate, "--step-tokens", str(step)) as server:
                gaps, firsts = asyncio.run(gaps_of(server.port, rng, arguments.seconds))
            rows[step].append((quantile(gaps, 0.5), quantile(gaps, 0.99), max(gaps), statistics.median(firsts), len(gaps) / arguments.seconds))
            print(step, [round(value, 4) for value in rows[step][-1]], flush=True)
    print("| --step-tokens | median gap | p99 | largest | first token of a prompt of", LONG_PROMPT, "| events/s |")
    for step, rounds in rows.items():
        median = [statistics.median(values) for values in zip(*rounds)]
        print(f"| {step} | {1e3 * median[0]:.1f} ms | {1e3 * median[1]:.1f} ms | {1e3 * median[2]:.1f} ms | {median[3]:.2f} s | {median[4]:.0f} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["cpu", "gaps"])
    parser.add_argument("binary")
    parser.add_argument("model")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=8, help="of each round of gaps")
    parser.add_argument("--speculate", default="off")
    arguments = parser.parse_args()
    {"cpu": measure_cpu, "gaps": measure_gaps}[arguments.what](arguments)


if __name__ == "__main__":
    main()
