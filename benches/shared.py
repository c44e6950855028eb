"""What shared memory of processes costs at a checkpoint: `shared.py [--mib N] [--checkpoints N] [--kinds KIND,...] [--store DIR]`.

A program without CUDA fills so much memory of each kind with random bytes and waits; it is checkpointed, uncompressed, again and again, and the medians of how long it stood still are told.
`private` is memory of its own beside them.
"""

import argparse
import mmap
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import jobs
from jobs import DORMOUSE

NAME = f"shared-{os.getpid()}"


def file(kind: str) -> int:
    """The descriptor of a file in memory."""
    if kind == "memfd":
        return os.memfd_create("shared")
    descriptor, path = tempfile.mkstemp(dir="/dev/shm")
    if kind == "deleted":
        os.unlink(path)
    return descriptor


def memory(kind: str, length: int) -> mmap.mmap:
    if kind in ("anonymous", "private"):
        flags = mmap.MAP_SHARED if kind == "anonymous" else mmap.MAP_PRIVATE
        return mmap.mmap(-1, length, flags=flags | mmap.MAP_ANONYMOUS)
    descriptor = file(kind)
    os.ftruncate(descriptor, length)
    return mmap.mmap(descriptor, length)


KINDS = ["anonymous", "memfd", "deleted", "named", "private"]


def be_program(kind: str, mib: int) -> None:
    there = memory(kind, mib << 20)
    for _ in range(mib):
        there.write(os.urandom(1 << 20))
    print("ready", flush=True)
    time.sleep(3600)


def measure(kind: str, given: argparse.Namespace, store: str) -> list[dict]:
    program = [sys.executable, __file__, "--program", kind, "--mib", str(given.mib)]
    words = [str(DORMOUSE), "run", "--device", "soft", "--name", NAME, "--store", f"{store}/s", "--", *program]
    job = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    try:
        if job.stdout.readline() != "ready\n":
            raise SystemExit("the program has not begun")
        return [jobs.ask("checkpoint", NAME, "--compress", "none") for _ in range(given.checkpoints)]
    finally:
        job.terminate()
        job.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=512)
    parser.add_argument("--checkpoints", type=int, default=5)
    parser.add_argument("--kinds", default=",".join(KINDS), help="as they are called above")
    parser.add_argument("--store", default="/dev/shm", help="a folder in which stores are made")
    parser.add_argument("--program", choices=KINDS, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.program:
        be_program(given.program, given.mib)
    print("| kind | MiB | stood still, ms: median | least | most | copied meanwhile, MiB | durable after, ms |\n|---|---|---|---|---|---|---|")
    for kind in given.kinds.split(","):
        with tempfile.TemporaryDirectory(dir=pathlib.Path(given.store)) as store:
            told = measure(kind, given, store)
        stalls = [each["stall_ms"] for each in told]
        copied = statistics.median(each["shared_copied"] for each in told) / (1 << 20)
        durable = statistics.median(each["total_ms"] for each in told)
        stood = f"{statistics.median(stalls):.0f} | {min(stalls):.0f} | {max(stalls):.0f}"
        print(f"| {kind} | {given.mib} | {stood} | {copied:.0f} | {durable:.0f} |", flush=True)


main()
