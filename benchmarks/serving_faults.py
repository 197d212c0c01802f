"""Hostile callers and faults of the service: no 500, no crash, flat memory, and no recorded answer lost or doubled.

- Fuzzing: bodies that are cut, changed in some bytes, nested, huge, or of another kind, to every address; and what
  schemathesis makes of the OpenAPI description. Between them good requests must still be answered.
- Memory: the resident memory of the server while fuzzed and good requests come at full rate. A leak of a byte for each
  request would show after as many requests, not after as much time, so ten minutes at full rate stand for an hour at
  the rate at which requests usually come; the numbers say how many requests there were.
- Kills: the server is killed (SIGKILL) again and again under load with ``--record``; every answer that a caller got
  must be in the run folder once, with the same votes and seed.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from serving import LENET, images, png
from serving_load import one, request, save, server
from smoothcert import load_run

KINDS = ("image/png", "image/jpeg", "application/json", "application/x-npy", "application/octet-stream", "text/plain")
PATHS = ("/v1/certify", "/v1/predict")
BOUNDARY = "multipart/form-data; boundary=xyz"


class Bodies:
    """Makes hostile requests from good ones."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        x = images("mnist", 1)[0]
        stream = io.BytesIO()
        np.save(stream, x.numpy())
        form = (
            b'--xyz\r\nContent-Disposition: form-data; name="file"; filename="a.png"\r\n\r\n'
            + png(x)
            + b"\r\n--xyz--\r\n"
        )
        values = json.dumps({"input": x.tolist(), "radius": [0.1, 0.25], "alpha": 0.0005}).encode()
        self.good = {
            "image/png": png(x),
            "application/x-npy": stream.getvalue(),
            "application/json": values,
            BOUNDARY: form,
        }

    def next(self) -> bytes:
        rng = self.rng
        kind, body = rng.choice(list(self.good.items()))
        content = bytearray(body)
        for _ in range(rng.randrange(4)):
            what, place = rng.randrange(7), rng.randrange(len(content) + 1)
            if what == 0:
                del content[place:]
            elif what == 1:
                content[place:place] = bytes(rng.randrange(256) for _ in range(rng.randrange(1, 30)))
            elif what == 2 and content:
                content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
            elif what == 3:
                del content[place : place + rng.randrange(1, 50)]
            elif what == 4:
                word = rng.choice(
                    [b"NaN", b"1e999", b"-1", b"null", b"[", b"]", b'"', b"true", b"9" * 50, b"\xff\xfe", b"{"]
                )
                content[place:place] = word
            elif what == 5:
                content[place:place] = content[: rng.randrange(1, 200)]
            else:
                content = bytearray(
                    rng.choice([b"", b"[" * 5000, b'{"input":' * 900, bytes(50_000), b"\x93NUMPY" + bytes(9)])
                )
        kind = kind if rng.random() < 0.8 else rng.choice(KINDS)
        query = rng.choice(
            ["", "", "?radius=0.1", "?radius=-1", "?alpha=9", "?deadline=1e-9", "?seed=1", "?x=%ff", "?model=%00"]
        )
        return request(bytes(content), kind, query, rng.choice(PATHS))


def memory(pid: int) -> float:
    """Return the resident memory of a process in MB."""
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="utf-8").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def fuzz(bodies: int, seconds: float) -> dict[str, Any]:
    """Send hostile bodies, at least so many and for at least so long, with good ones between them."""
    made, statuses, marks = Bodies(0), Counter[int](), []
    good = request(made.good["image/png"], "image/png")

    async def caller(port: int, pid: int, began: float) -> None:
        while sum(statuses.values()) < bodies or time.monotonic() - began < seconds:
            statuses[(await one(port, made.next()))[0]] += 1
            if sum(statuses.values()) % 50 == 0:
                status, _ = await one(port, good)
                assert status in (200, 429), status
            if time.monotonic() - began > len(marks) * max(seconds, 10) / 20:
                marks.append(memory(pid))

    async def callers(port: int, pid: int) -> None:
        began = time.monotonic()
        await asyncio.gather(*(caller(port, pid, began) for _ in range(8)))

    with server(str(LENET), "--radius", "0.25", "--deadline", "0.05", "--body-seconds", "2") as (port, process):
        asyncio.run(callers(port, process.pid))
        assert process.poll() is None
        status, _ = asyncio.run(one(port, good))
        assert status == 200, status
        half = marks[len(marks) // 2 :]
    return {
        "requests": sum(statuses.values()),
        "statuses": dict(sorted(statuses.items())),
        "memory MB": [round(each) for each in marks],
        "growth in the second half MB": round(half[-1] - half[0], 1),
    }


def schemathesis(examples: int) -> dict[str, Any]:
    """Run schemathesis on the OpenAPI description."""
    with server(str(LENET), "--radius", "0.25", "--deadline", "0.05") as (port, process):
        url = f"http://127.0.0.1:{port}/openapi.json"
        checks = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
        command = ["schemathesis", "run", url, "--checks", checks, "--max-examples", str(examples), "--seed", "1"]
        found = subprocess.run(
            [str(Path(sys.executable).parent / command[0]), *command[1:]], capture_output=True, text=True
        )
        assert process.poll() is None
    return {"exit code": found.returncode, "end": found.stdout.strip().splitlines()[-25:]}


def kills(count: int) -> dict[str, Any]:
    """Kill the server under load again and again, and compare the answers that callers got with the run folder."""
    bodies = [request(png(x), "image/png") for x in images("mnist", 50)]
    sent: dict[int, dict[str, Any]] = {}
    twice = 0

    async def load(port: int, seconds: float, pid: int) -> None:
        nonlocal twice
        ended = False

        async def caller(place: int) -> None:
            nonlocal twice
            while not ended:
                status, body = await one(port, bodies[place % len(bodies)])
                place += 7
                if status == 200:
                    answer = json.loads(body)
                    twice += answer["record"] in sent
                    sent[answer["record"]] = answer

        callers = asyncio.gather(*(caller(place) for place in range(16)))
        await asyncio.sleep(seconds)
        os.kill(pid, 9)
        ended = True
        await callers

    rng = random.Random(0)
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        for _ in range(count):
            with server(str(LENET), "--radius", "0.25", "--deadline", "0.1", "--record", str(run)) as (port, process):
                asyncio.run(load(port, rng.uniform(0.05, 1.5), process.pid))
                process.wait()
        rows = {row["index"]: row for row in load_run(run).rows()}
        total = len(load_run(run).table(["index"]))
    lost = sum(number not in rows for number in sent)
    other = sum(
        str(rows[number]["seed"]) != answer["seed"] or rows[number]["counts"] != answer["votes"]
        for number, answer in sent.items()
        if number in rows
    )
    seeds = len({row["seed"] for row in rows.values()})
    return {
        "kills": count,
        "answers that callers got": len(sent),
        "rows": total,
        "lost": lost,
        "doubled": twice + total - len(rows) + len(rows) - seeds,
        "different": other,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bodies", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=600, help="at least so long, for the memory")
    parser.add_argument("--examples", type=int, default=200, help="of schemathesis, for each operation")
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--only", choices=("fuzz", "schemathesis", "kills"))
    parser.add_argument("-o", "--output", help="a file for the numbers, as JSON")
    options = parser.parse_args()
    found: dict[str, Any] = {}
    if options.only in (None, "fuzz"):
        found["fuzz"] = fuzz(options.bodies, options.seconds)
        print(json.dumps(found["fuzz"], indent=2), flush=True)
    if options.only in (None, "schemathesis"):
        found["schemathesis"] = schemathesis(options.examples)
        print("\n".join([f"exit code {found['schemathesis']['exit code']}", *found["schemathesis"]["end"]]), flush=True)
    if options.only in (None, "kills"):
        found["kills"] = kills(options.kills)
        print(json.dumps(found["kills"], indent=2), flush=True)
    if options.output:
        save(options.output, found)
    failed = set(found.get("fuzz", {}).get("statuses", {})) & {0, 500}
    failed |= {name for name in ("lost", "doubled", "different") if found.get("kills", {}).get(name)}
    if found.get("schemathesis", {}).get("exit code"):
        failed.add("schemathesis")
    if failed:
        raise SystemExit(f"failed: {', '.join(map(str, failed))}")


if __name__ == "__main__":
    main()
