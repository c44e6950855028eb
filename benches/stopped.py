"""How long a kernel with marks takes to stop: `stopped.py [--device DEVICE] [--checkpoints N] [--polls POLL,...] [--kernels KERNEL,...] [--round-us US]`.

Launches of a second each, one after the other, are checkpointed N times for each kernel of `marked` and each kind of poll; the time is
from the request to stopped, as `dormouse checkpoint` tells it (`drain_ms`).
"""

import argparse
import os
import random
import signal
import statistics
import subprocess
import tempfile
import time

import jobs
from jobs import DORMOUSE, HERE


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="gpu", choices=["gpu", "soft"])
    parser.add_argument("--checkpoints", type=int, default=200, help="of each kernel with each kind of poll")
    parser.add_argument("--polls", default="adaptive,count:16,every,barrier", help="as DORMOUSE_POLL has them")
    parser.add_argument("--kernels", default="alone,tiles")
    parser.add_argument("--round-us", default="50", help="from mark to mark, microseconds")
    return parser.parse_args()


def stopped(given: argparse.Namespace, kernel: str, poll: str, store: str) -> tuple[list[dict], list[dict]]:
    """What the checkpoints have told that found a kernel half-way, and the others: those that came between two launches, and those that waited for the end of one."""
    name = f"stopped-{os.getpid()}"
    words = [str(DORMOUSE), "run", "--store", store, "--name", name, "--device", given.device, "--"]
    words += [str(HERE / "marked"), "hold", kernel, given.round_us, "100000"]
    environment = os.environ | {"DORMOUSE_POLL": poll}
    job = subprocess.Popen(words, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    try:
        if job.stdout.readline() != "ready\n":
            raise SystemExit("the program did not begin")
        told, others = [], []
        draw = random.Random(1)
        while len(told) < given.checkpoints:
            time.sleep(draw.uniform(0.02, 0.3))
            report = jobs.ask("checkpoint", name)
            (told if report["half_way"] else others).append(report)
            jobs.ask("prune", "--store", store, "--keep-last", "1")
        return told, others
    finally:
        for supervisor in jobs.supervisors(name):
            os.kill(supervisor, signal.SIGKILL)
        job.wait()


def main() -> None:
    given = arguments()
    print("| kernel | poll | checkpoints | stopped after, ms: median | worst | stood still, ms: median | worst | others | worst of these |\n|---|---|---|---|---|---|---|---|---|", flush=True)
    for kernel in given.kernels.split(","):
        for poll in given.polls.split(","):
            with tempfile.TemporaryDirectory(dir="/dev/shm") as store:
                told, others = stopped(given, kernel, poll, store)
            row = [kernel, poll, str(len(told))]
            for figure in ("drain_ms", "stall_ms"):
                values = [each[figure] for each in told]
                row += [f"{statistics.median(values):.2f}", f"{max(values):.2f}"]
            row += [str(len(others)), f"{max((each['drain_ms'] for each in others), default=0):.2f}"]
            print(f"| {' | '.join(row)} |", flush=True)


main()
