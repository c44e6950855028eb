"""Asks for its own checkpoints from Python. Prints the same without Dormouse, with it, and when it is restarted from any of them; what became of its asking it
tells on standard error. No framework: where there is a CUDA driver its state is in the device's memory, else in its own.

`self_checkpoint.py [STEPS [HOW]]`: HOW is "loop" (a checkpoint after each quarter of the steps) or "points" (each step is a convenient point).
"""

import array
import ctypes
import hashlib
import mmap
import sys
import threading
import time

import dormouse

SIZE = 1 << 16
POOL = bytes(range(256)) * 4096


class Device:
    """Memory of the first device."""

    def __init__(self):
        self.cuda = ctypes.CDLL("libcuda.so.1")
        self.call("cuInit", 0)
        device, context, self.memory = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)
        self.call("cuMemAlloc_v2", ctypes.byref(self.memory), ctypes.c_size_t(SIZE))
        self.call("cuMemsetD8_v2", self.memory, 0, ctypes.c_size_t(SIZE))

    def call(self, name, *args):
        error = getattr(self.cuda, name)(*args)
        if error:
            raise RuntimeError(f"{name}: {error}")

    def read(self):
        data = ctypes.create_string_buffer(SIZE)
        self.call("cuMemcpyDtoH_v2", data, self.memory, ctypes.c_size_t(SIZE))
        return data.raw

    def write(self, data):
        self.call("cuMemcpyHtoD_v2", self.memory, data, ctypes.c_size_t(SIZE))


class Host:
    """Memory of this process."""

    def __init__(self):
        self.data = bytes(SIZE)

    def read(self):
        return self.data

    def write(self, data):
        self.data = data


def memory():
    try:
        return Device()
    except (OSError, RuntimeError):
        return Host()


seen = {"before": 0, "after": 0, "restarted": 0}
turns = 0


@dormouse.before_checkpoint
def before():
    seen["before"] += 1


@dormouse.after_checkpoint
def after(outcome):
    assert isinstance(outcome, (dormouse.Checkpoint, dormouse.CheckpointError)), outcome
    seen["after"] += 1


@dormouse.after_restart
def restarted(checkpoint):
    assert checkpoint.restarted and checkpoint.image == dormouse.image(), checkpoint
    seen["restarted"] += 1


def turn():
    global turns
    while True:
        turns += 1
        time.sleep(0.0005)


def tell(what, step, outcome):
    print(f"{what} step {step}: {outcome} restarts {dormouse.restarts()}", file=sys.stderr, flush=True)


def ask(step):
    before, turned = dormouse.restarts(), turns
    try:
        taken = dormouse.checkpoint()
    except dormouse.CheckpointError as error:
        tell("ask", step, f"code {error.code} {error}")
        return
    tell("ask", step, taken)
    assert (taken is None) == (not dormouse.available()), taken
    if taken:
        assert dormouse.restarts() == before + taken.restarted, before
        assert turns > turned, "no other thread has run meanwhile"


def exclude():
    """Numbers that need not be saved, others that are again, and some whose memory goes to others."""
    here = dormouse.available()
    anything, again = (array.array("Q", range(1 << 20)) for _ in range(2))
    assert dormouse.exclude(anything) == here
    assert dormouse.exclude(again) == dormouse.include(again) == here
    assert not dormouse.exclude(0, 0)
    pool = mmap.mmap(-1, 1 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    part = memoryview(pool)[4096 : 9 * 4096]
    assert dormouse.exclude(part) == here
    del part
    pool[:] = POOL
    if here:
        try:
            dormouse.exclude(1 << 62, 4096)
            raise AssertionError("there is no memory")
        except ValueError:
            pass
    return anything, again, pool


def main():
    anything, again, pool = exclude()
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 40
    how = sys.argv[2] if len(sys.argv) > 2 else "loop"
    threading.Thread(target=turn, daemon=True).start()
    state = memory()
    for step in range(1, steps + 1):
        data = state.read()
        digest = hashlib.sha256(data + str(step).encode()).digest()
        state.write(digest * (SIZE // len(digest)))
        print(f"step {step} {digest.hex()}", flush=True)
        if how == "points":
            time.sleep(0.005)
            point = dormouse.convenient_point()
            if point:
                tell("point", step, point)
        elif step % (steps // 4 + 1) == 0:
            ask(step)
    assert again == array.array("Q", range(1 << 20)), "what was included is lost"
    assert pool[:] == POOL, "what belongs to others now is lost"
    assert dormouse.restarted() or anything == again, "what runs on has lost something"
    assert seen["before"] == seen["after"] + seen["restarted"], seen
    tell("callbacks", steps, seen)
    print("done", hashlib.sha256(state.read()).hexdigest())


main()
