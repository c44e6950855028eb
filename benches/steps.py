"""What checkpoints cost a program's steps: `steps.py [--seconds S] [--every SECONDS] [--threads N,...] [--store DIR] [--device DEVICE] [-- PROGRAM ARGUMENT...]`.

Runs a program that prints a line for each step: natively, under Dormouse, and with regular checkpoints whose writers have so many threads (`--threads`; `default` for none
that is said), each for S seconds from its first step on; then has the images verified. Lines have to be the same in all runs. Without a program it is `train.py` with 80 layers and
4 GiB in the host's memory.
"""

import argparse
import os
import pathlib
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import jobs
from jobs import DORMOUSE, HERE

NAME = f"steps-{os.getpid()}"
# Steps that are not counted: the first ones take longer.
WARM_UP = 20


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=70, help="of each run")
    parser.add_argument("--every", default="30s", help="as `dormouse run` has it")
    parser.add_argument("--threads", default="default,4,2", help="one run with checkpoints for each")
    parser.add_argument("--store", help="a folder in which stores are made [default: /tmp]")
    parser.add_argument("--device", default="gpu", choices=["gpu", "soft"])
    parser.add_argument("program", nargs="*", default=[sys.executable, str(HERE / "train.py"), "80", "1000000", "0", "4"])
    return parser.parse_args()


def run(words: list[str], seconds: float) -> tuple[list[str], list[float]]:
    """The lines of a program's steps, and when each was printed."""
    process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    lines, times = [], []
    try:
        for line in process.stdout:
            if not line[:1].isdigit():
                continue
            lines.append(line)
            times.append(time.monotonic())
            if times[-1] - times[0] > seconds:
                break
    finally:
        for supervisor in jobs.supervisors(NAME):
            os.kill(supervisor, signal.SIGKILL)
        process.kill()
        process.wait()
    if len(lines) < 2 * WARM_UP:
        raise SystemExit(f"{len(lines)} steps within {seconds} s are too few")
    return lines, times


def main() -> int:
    given = arguments()
    print("| run | steps | ms: mean | median | the longest | mean, more than natively |\n|---|---|---|---|---|---|", flush=True)
    natively, same = None, True
    with tempfile.TemporaryDirectory(prefix="dormouse-steps-", dir=given.store) as folder:

        def measure(what: str, words: list[str]) -> None:
            nonlocal natively, same
            lines, times = run(words, given.seconds)
            each = [1e3 * (after - before) for before, after in zip(times[WARM_UP:], times[WARM_UP + 1 :])]
            mean = statistics.mean(each)
            natively = natively or (lines, mean)
            common = min(len(lines), len(natively[0]))
            same &= lines[:common] == natively[0][:common]
            more = 100 * (mean / natively[1] - 1)
            print(f"| {what} | {len(each)} | {mean:.2f} | {statistics.median(each):.2f} | {max(each):.0f} | {more:+.1f} % |", flush=True)

        def dormouse(store: pathlib.Path, *flags: str) -> list[str]:
            begin = [str(DORMOUSE), "run", "--store", str(store), "--name", NAME, "--device", given.device, *flags]
            return [*begin, "--", *given.program]

        if given.device == "gpu":
            measure("natively", given.program)
        measure("under Dormouse", dormouse(pathlib.Path(folder) / "none"))
        for threads in given.threads.split(","):
            store = pathlib.Path(folder) / threads
            said = [] if threads == "default" else ["--threads", threads]
            measure(f"--every {given.every}, threads: {threads}", dormouse(store, "--every", given.every, "--keep-last", "2", *said))
            images = jobs.ask("ls", "--store", str(store))["images"]
            jobs.ask("verify", "--store", str(store))
            told = [f"stood still for {each['stall_ms']:.0f} ms, {each['stored']['written'] / 1e9:.2f} GB written" for each in images]
            print(f"{len(images)} images verified: " + "; ".join(told), flush=True)
            shutil.rmtree(store)
    print("the same was printed in all of them" if same else "SOMETHING ELSE WAS PRINTED", flush=True)
    return 0 if same else 1


sys.exit(main())
