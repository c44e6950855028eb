"""What checkpoints cost a program's steps: `steps.py [--seconds S] [--without S] [--every SECONDS] [--threads N,...] [--store DIR] [--device DEVICE] [-- PROGRAM ARGUMENT...]`.

Runs a program that prints a line for each step: natively, under Dormouse, and with regular checkpoints whose writers have so many threads (`--threads`; `default` for none
that is said), each for S seconds from its first step on, and natively once more, since a device is not as fast in one minute as in another: both native runs together are what the others are
compared with. Every image is verified, by two processors, once it is there, and one of the two that are kept is restarted; how long steps took beside an image that was being written, or
verified, is told, too, and what the mean would be had those beside verifying taken as long as the others. Lines have to be the same in all runs. Without a program it is
`train.py` with 80 layers and 4 GiB in the host's memory.
"""

import argparse
import datetime
import os
import pathlib
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

import jobs
from jobs import DORMOUSE, HERE

NAME = f"steps-{os.getpid()}"
NATIVELY = "natively"
# How long one that was restarted is looked at, seconds.
RESTARTED = 15
# Steps that are not counted: the first ones take longer.
WARM_UP = 20


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=70, help="of each run")
    parser.add_argument("--without", type=float, help="of those without checkpoints [default: as the others]")
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
            times.append(time.time())
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


class Verifier(threading.Thread):
    """Has each image of a store verified that comes, until it is told that no more will."""

    def __init__(self, store: pathlib.Path):
        super().__init__()
        self.store, self.told, self.problem = store, {}, None
        # From when to when images were written, and verified, seconds since 1970.
        self.writing, self.verifying = [], []
        self.over = threading.Event()

    def run(self) -> None:
        # What is measured is the program beside checkpoints, not beside this.
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-2:])
        last = False
        while not last and self.problem is None:
            last = self.over.wait(0.5)
            for image in self.images():
                if image["id"] not in self.told and self.problem is None:
                    begun = time.time()
                    self.writing.append((datetime.datetime.fromisoformat(image["created"]).timestamp(), begun))
                    self.verify(image)
                    self.verifying.append((begun, time.time()))

    def images(self) -> list[dict]:
        return jobs.ask("ls", "--store", str(self.store))["images"] if self.store.exists() else []

    def verify(self, image: dict) -> None:
        words = [str(DORMOUSE), "verify", "--store", str(self.store), image["id"]]
        said = subprocess.run(words, capture_output=True, text=True)
        if said.returncode == 0:
            self.told[image["id"]] = f"stood still for {image['stall_ms']:.0f} ms, {image['stored']['written'] / 1e9:.2f} GB written"
        else:
            self.problem = f"verify {image['id']} ended with {said.returncode}: {said.stdout}{said.stderr}"


def tell(what: str, steps: list[tuple[float, float]]) -> float:
    """Prints a line of the table; answers the mean, ms."""
    each = [1e3 * (after - before) for before, after in steps]
    mean = statistics.mean(each)
    print(f"| {what} | {len(each)} | {mean:.2f} | {statistics.median(each):.2f} | {max(each):.0f} |", flush=True)
    return mean


def beside(steps: list[tuple[float, float]], spans: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Those that took place within one of the spans, at least in part."""
    return [step for step in steps if any(begin < step[1] and step[0] < end for begin, end in spans)]


class Steps:
    def __init__(self, given: argparse.Namespace, folder: pathlib.Path):
        self.given, self.folder = given, folder
        self.first, self.same = None, True
        # Of each run, how long its steps took in the mean, ms.
        self.means = []

    def measure(self, what: str, words: list[str], seconds: float) -> list[tuple[float, float]]:
        """Answers from when to when each step took, seconds since 1970."""
        lines, times = run(words, seconds)
        steps = list(zip(times[WARM_UP:], times[WARM_UP + 1 :]))
        self.means.append((what, tell(what, steps)))
        self.compare(lines)
        return steps

    def compare(self, lines: list[str]) -> None:
        """With what was printed before: of the same steps the same, as far as both go."""
        known = self.first = self.first or lines
        begin = known.index(lines[0]) if lines[0] in known else len(known)
        common = min(len(lines), len(known) - begin)
        self.same &= common > 0 and lines[:common] == known[begin : begin + common]
        if begin + len(lines) > len(known):
            self.first = known + lines[common:]

    def dormouse(self, store: pathlib.Path, *words: str) -> list[str]:
        return [str(DORMOUSE), words[0], "--store", str(store), "--device", self.given.device, *words[1:]]

    def with_checkpoints(self, threads: str) -> None:
        store = self.folder / threads
        said = [] if threads == "default" else ["--threads", threads]
        verifier = Verifier(store)
        verifier.start()
        try:
            words = self.dormouse(store, "run", "--name", NAME, "--every", self.given.every, "--keep-last", "2", *said, "--", *self.given.program)
            steps = self.measure(f"--every {self.given.every}, threads: {threads}", words, self.given.seconds)
        finally:
            verifier.over.set()
            verifier.join()
        if verifier.problem:
            raise SystemExit(verifier.problem)
        self.told_apart(steps, verifier)
        image = random.choice(verifier.images())["id"]
        self.measure(f"restarted from {image}", self.dormouse(store, "restart", image), RESTARTED)
        print(f"{len(verifier.told)} images verified: " + "; ".join(verifier.told.values()), flush=True)
        shutil.rmtree(store)

    def told_apart(self, steps: list[tuple[float, float]], verifier: Verifier) -> None:
        written, verified = (beside(steps, spans) for spans in (verifier.writing, verifier.verifying))
        verified = [step for step in verified if step not in set(written)]
        concerned = {*written, *verified}
        others = [step for step in steps if step not in concerned]
        parts = {"while an image was written": written, "while one was verified": verified, "others": others}
        means = {what: tell(f"… {what}", part) for what, part in parts.items() if part}
        if written and verified and others:
            counts = len(written), len(steps) - len(written)
            mean = (counts[0] * means["while an image was written"] + counts[1] * means["others"]) / len(steps)
            self.means.append(("… had verifying cost nothing", mean))

    def all(self) -> bool:
        without = self.given.without or self.given.seconds
        self.natively(without)
        self.measure("under Dormouse", self.dormouse(self.folder / "none", "run", "--name", NAME, "--", *self.given.program), without)
        for threads in self.given.threads.split(","):
            self.with_checkpoints(threads)
        self.natively(without)
        self.conclude()
        return self.same

    def natively(self, seconds: float) -> None:
        if self.given.device == "gpu":
            self.measure(NATIVELY, self.given.program, seconds)

    def conclude(self) -> None:
        """How much longer steps took than natively, or where that cannot be, than under Dormouse without checkpoints."""
        base = [mean for what, mean in self.means if what == NATIVELY] or [self.means[0][1]]
        for what, mean in self.means:
            print(f"{what}: {100 * (mean / statistics.mean(base) - 1):+.1f} %", flush=True)


def main() -> int:
    given = arguments()
    print("| run | steps | ms: mean | median | the longest |\n|---|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory(prefix="dormouse-steps-", dir=given.store) as folder:
        same = Steps(given, pathlib.Path(folder)).all()
    print("the same was printed in all of them" if same else "SOMETHING ELSE WAS PRINTED", flush=True)
    return 0 if same else 1


sys.exit(main())
