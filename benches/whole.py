"""A whole program natively and under Dormouse: what it prints has to be the same, however it is disturbed.

    whole.py [--every SECONDS] [--store DIR] [--device DEVICE] [--limit SECONDS] [-- PROGRAM ARGUMENT...]

Runs it natively; under Dormouse with a checkpoint every SECONDS, a suspension and a migration to a process of its own between them; then
has every image verified, restarts one that was drawn, and prints what all of that took. Without a program it is `train.py` with 80 layers.
"""

import argparse
import json
import os
import pathlib
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import jobs
from jobs import DORMOUSE, HERE

NAME = f"whole-{os.getpid()}"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--every", type=float, default=30, help="seconds from checkpoint to checkpoint")
    parser.add_argument("--store", help="a folder that is new [default: in /tmp, and removed]")
    parser.add_argument("--device", default="gpu", choices=["gpu", "soft"])
    parser.add_argument("--limit", type=float, default=590, help="seconds that all of it may take")
    parser.add_argument("--seed", type=int, default=time.time_ns(), help="what the image to be restarted is drawn with")
    parser.add_argument("program", nargs="*", default=[sys.executable, str(HERE / "train.py")])
    return parser.parse_args()


class Whole:
    def __init__(self, given: argparse.Namespace, folder: pathlib.Path):
        self.given, self.folder = given, folder
        self.store = pathlib.Path(given.store) if given.store else folder / "store"
        self.end = time.monotonic() + given.limit
        self.started: list[subprocess.Popen] = []

    def left(self) -> float:
        return max(self.end - time.monotonic(), 0.1)

    def dormouse(self, *words: str) -> list[str]:
        return [str(DORMOUSE), words[0], "--store", str(self.store), *words[1:]]

    def start(self, words: list[str], name: str) -> tuple[subprocess.Popen, pathlib.Path]:
        output = self.folder / name
        with output.open("wb") as file:
            process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=file)
        self.started.append(process)
        return process, output

    def ask(self, *words: str, may_have_ended: bool = False) -> dict | None:
        return jobs.ask(*words, timeout=self.left(), may_have_ended=NAME if may_have_ended else None)

    def until_printed(self, process: subprocess.Popen, output: pathlib.Path, lines: int) -> None:
        while output.read_bytes().count(b"\n") < lines and process.poll() is None:
            if self.left() < 1:
                raise SystemExit(f"{output.name} printed too little within the limit")
            time.sleep(0.01)

    def undisturbed(self) -> tuple[bytes, float]:
        """Natively, or on the software device, which no program has natively."""
        begun = time.monotonic()
        words = self.dormouse("run", "--device", "soft", "--") if self.given.device == "soft" else []
        process, output = self.start(words + self.given.program, "undisturbed")
        if process.wait(self.left()) != 0:
            raise SystemExit(f"undisturbed, the program ended with {process.returncode}")
        return output.read_bytes(), time.monotonic() - begun

    def disturbed(self) -> tuple[bytes, list[dict], dict[str, dict]]:
        """Checkpoints until the program ends, and in place of the second one a suspension, of the third a migration."""
        words = self.dormouse("run", "--name", NAME, "--device", self.given.device, "--", *self.given.program)
        process, output = self.start(words, "disturbed")
        outputs, checkpoints, moves = [output], [], {}
        others = {2: [("suspend",), ("resume",)], 3: [("migrate", "--to", "here", "--output", str(self.folder))]}
        self.until_printed(process, output, 1)
        turn = 0
        while self.waits(process, self.given.every):
            turn += 1
            for word, *options in others.get(turn, [("checkpoint",)]):
                said = self.ask(word, NAME, *options, may_have_ended=True)
                if said is not None and word == "checkpoint":
                    checkpoints.append(said)
                elif said is not None:
                    moves[word] = said
            if "migrate" in moves and process is not None:
                outputs.append(self.folder / f"{NAME}.out")
                process = None
        if process is not None and process.wait(self.left()) != 0:
            raise SystemExit(f"disturbed, the program ended with {process.returncode}")
        if len(moves) < 3 or not checkpoints:
            raise SystemExit(f"the program ended after {turn} disturbances: it has to run for longer, or --every for less")
        return b"".join(each.read_bytes() for each in outputs), checkpoints, moves

    def waits(self, process: subprocess.Popen | None, seconds: float) -> bool:
        """Whether the job is still there after so long."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if self.left() < 1:
                raise SystemExit("the program has not ended within the limit")
            has_ended = process.poll() is not None if process else not jobs.supervisors(NAME, self.left())
            if has_ended:
                return False
            time.sleep(0.2)
        return True

    def restarted(self, image: str) -> tuple[bytes, float]:
        """What a restart of an image prints, and how long until it printed something."""
        begun = time.monotonic()
        process, output = self.start(self.dormouse("restart", "--device", self.given.device, image), "restarted")
        self.until_printed(process, output, 1)
        first = time.monotonic() - begun
        if process.wait(self.left()) != 0:
            raise SystemExit(f"restarted from {image}, the program ended with {process.returncode}")
        return output.read_bytes(), first


def spread(of: list[float]) -> str:
    return f"{statistics.median(of):.0f} ({min(of):.0f} to {max(of):.0f})" if of else "none"


def measure(whole: Whole) -> bool:
    undisturbed, seconds = whole.undisturbed()
    print(f"undisturbed: {seconds:.1f} s, {len(undisturbed)} bytes printed", flush=True)
    printed, checkpoints, moves = whole.disturbed()
    same = printed == undisturbed
    print(f"disturbed: {'the same' if same else 'SOMETHING ELSE'} printed", flush=True)
    for name in ("stall_ms", "device_ms", "total_ms"):
        print(f"  {len(checkpoints)} checkpoints, {name}: {spread([each[name] for each in checkpoints])}", flush=True)
    for name, said in moves.items():
        print(f"  {name}: {json.dumps({key: value for key, value in said.items() if key.endswith('_ms')})}", flush=True)
    subprocess.run(whole.dormouse("verify"), check=True, timeout=whole.left(), stdout=subprocess.DEVNULL)
    images = [image["id"] for image in whole.ask("ls", "--store", str(whole.store))["images"]]
    print(f"  {len(images)} images verified", flush=True)
    image = random.Random(whole.given.seed).choice(images)
    rest, first = whole.restarted(image)
    follows = bool(rest) and undisturbed.endswith(rest)
    print(f"restarted from {image}: {'the rest' if follows else 'SOMETHING ELSE'} printed, from {first:.2f} s on", flush=True)
    return same and follows


def main() -> int:
    given = arguments()
    with tempfile.TemporaryDirectory(prefix="dormouse-whole-") as folder:
        whole = Whole(given, pathlib.Path(folder))
        try:
            return 0 if measure(whole) else 1
        finally:
            whole.end = time.monotonic() + 10
            for process in whole.started:
                process.kill()
            for supervisor in jobs.supervisors(NAME, whole.left()):
                os.kill(supervisor, signal.SIGKILL)


sys.exit(main())
