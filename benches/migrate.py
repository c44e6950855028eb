"""What moving a job costs it: `migrate.py [--device DEVICE] [--gib N] [--rounds N] [--turns N] [--side N] [--memory DIR]`.

`changes` with N GiB of random bytes of device memory, all of which it changes again and again, moves to a `dormouse receive` on this machine, over
loopback TCP and TLS, both stores in memory. Of each turn a line: what was sent before, how long the job stood still and what that consists of, and how much
processor time the whole machine took meanwhile. As much memory as that takes is used and freed first: a virtual machine that has never used it gets it page by
page from its host, which takes several times as long as everything else. Needs root, for running jobs of the other side's own.
"""

import argparse
import os
import pathlib
import signal
import subprocess
import tempfile
import threading
import time

import jobs
from jobs import DORMOUSE, HERE

PORT = 7171
PLACE = f"127.0.0.1:{PORT}"
HEAD = [
    "GiB", "sent in rounds, MB", "written in the last, MB", "stood still, ms", "of it capturing, and sending meanwhile", "writing",
    "sending the rest", "starting, the rest", "processor, s: programs", "kernel", "of cores",
]


class Processors(threading.Thread):
    """Notes what the processors do, until it is told to stop."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.noted: list[tuple[float, float, float]] = []
        self.stops = threading.Event()

    def run(self) -> None:
        tick = os.sysconf("SC_CLK_TCK")
        while not self.stops.wait(0.02):
            user, nice, system, _, _, irq, softirq = map(int, pathlib.Path("/proc/stat").read_text().split()[1:8])
            self.noted.append((time.monotonic(), (user + nice) / tick, (system + irq + softirq) / tick))

    def between(self, begin: float, end: float) -> tuple[float, float]:
        """Seconds of programs and of the kernel."""
        inside = [each for each in self.noted if begin <= each[0] <= end]
        (_, user, system), (_, user_then, system_then) = inside[0], inside[-1]
        return user_then - user, system_then - system


def keys() -> None:
    """This machine may bring itself a job, with keys that are gone with the folder."""
    run = lambda *words: subprocess.run([str(DORMOUSE), "keys", *words], check=True, capture_output=True, text=True).stdout
    run("new")
    key = next(word for word in run("show").split() if word.startswith("SHA256:"))
    run("authorize", "here", "--jobs", key)
    run("trust", PLACE, key)


def use_memory(bytes_used: int, memory: pathlib.Path) -> None:
    """Has the machine have so much."""
    cores = os.cpu_count() or 1
    fill = lambda number: subprocess.Popen(["head", "--bytes", str(bytes_used // cores), "/dev/zero"], stdout=(memory / str(number)).open("wb"))
    if any([filling.wait() for filling in [fill(number) for number in range(cores)]]):
        raise SystemExit(f"{memory} has no room for {bytes_used >> 20} MiB, which are used: give a smaller --gib, or fewer --rounds")
    for number in range(cores):
        (memory / str(number)).unlink()


def keep_changing(folder: pathlib.Path, ends: threading.Event) -> None:
    while not ends.wait(0.02):
        if not (folder / "go").exists():
            (folder / "go.new").write_text("100 contiguous")
            (folder / "go.new").rename(folder / "go")


def turn(given: argparse.Namespace, folder: pathlib.Path, memory: pathlib.Path) -> list[str]:
    name = f"migrate-{os.getpid()}"
    receive = f"mount -t tmpfs none /run; exec {DORMOUSE} receive --listen {PLACE} --store {memory}/there --output {folder}"
    other = subprocess.Popen(["unshare", "--mount", "bash", "-c", receive], stderr=(folder / "receive").open("w"))
    words = [str(DORMOUSE), "run", "--device", given.device, "--name", name, "--store", f"{memory}/here", "--"]
    words += [str(HERE / "changes"), str(given.gib), str(folder), "random", str(given.side)]
    job = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    ends, processors, supervisor = threading.Event(), Processors(), None
    changing = threading.Thread(target=keep_changing, args=(folder, ends))
    try:
        if job.stdout.readline() != "ready\n":
            raise SystemExit("the program did not begin")
        changing.start()
        processors.start()
        time.sleep(0.5)
        begin = time.monotonic()
        told = jobs.ask("migrate", name, "--rounds", str(given.rounds), "--to", PLACE)
        # What was sent ahead is removed behind that.
        end, supervisor = begin + told["total_ms"] / 1e3, told["supervisor"]
        user, system = processors.between(end - told["downtime_ms"] / 1e3, end)
    finally:
        ends.set()
        if changing.is_alive():
            changing.join()
        processors.stops.set()
        job.kill()
        if supervisor is not None:
            os.kill(supervisor, signal.SIGKILL)
        other.terminate()
        job.wait()
        other.wait()
    rounds = "; ".join(f"{each['sent'] / 1e6:.0f}" for each in told["rounds"])
    parts = [f"{told[part]:.0f}" for part in ("downtime_ms", "stall_ms", "write_ms", "send_ms", "start_ms")]
    busy = [f"{user:.1f}", f"{system:.1f}", str(os.cpu_count())]
    return [f"{given.gib:g}", rounds, f"{told['last']['written'] / 1e6:.0f}", *parts, *busy]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="gpu", choices=["gpu", "soft"])
    parser.add_argument("--gib", type=float, default=5)
    parser.add_argument("--rounds", type=int, default=2, help="of checkpoints that are sent ahead")
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--side", type=int, default=2048, help="of the matrices that the program multiplies meanwhile")
    parser.add_argument("--memory", default="/dev/shm", help="a folder in memory, for the stores")
    given = parser.parse_args()
    print(f"| {' | '.join(HEAD)} |\n|{'---|' * len(HEAD)}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["DORMOUSE_KEYS"] = f"{folder}/keys"
        keys()
        with tempfile.TemporaryDirectory(dir=given.memory) as memory:
            # The program's own, where that is no device's, and an image for each round and the last on either side.
            use_memory(int((2 * given.rounds + 4) * given.gib * (1 << 30)), pathlib.Path(memory))
        for _ in range(given.turns):
            with tempfile.TemporaryDirectory(dir=given.memory) as memory, tempfile.TemporaryDirectory() as talk:
                print(f"| {' | '.join(turn(given, pathlib.Path(talk), pathlib.Path(memory)))} |", flush=True)


main()
