"""A program that runs under Dormouse asks for its own checkpoints.

It runs without Dormouse just as well: :func:`available` is ``False`` there, every call returns ``None`` (or 0) at once, and nothing else
happens. Nothing here needs CUDA, or any framework.

A checkpoint is one of the whole job: all its processes and threads, with what they have on the GPU. In the run that is restarted from it the very
call that asked for it returns again, and says so::

    import dormouse

    for step in range(steps):
        train(step)
        dormouse.convenient_point()   # a checkpoint that somebody wants is taken here
    done = dormouse.checkpoint()      # or: take one now
    if done and done.restarted:
        print("restarted from", done.image)

While a call waits, other threads of Python run on.
"""

from __future__ import annotations

import warnings
import weakref
from typing import Any, Callable, Dict, NamedTuple, Optional, Tuple, TypeVar, Union

from . import _native

__all__ = [
    "Checkpoint",
    "CheckpointError",
    "after_checkpoint",
    "after_restart",
    "available",
    "before_checkpoint",
    "checkpoint",
    "convenient_point",
    "exclude",
    "image",
    "include",
    "restarted",
    "restarts",
    "wait",
]

_BEFORE, _AFTER, _AFTER_RESTART = 1, 2, 3
_RESTARTED, _TAKEN = 1, 2


class Checkpoint(NamedTuple):
    """A checkpoint that was taken."""

    image: Optional[str]
    """The image's id; ``None`` while it is being written."""
    restarted: bool
    """Whether this is the run that was restarted from it."""
    ticket: int
    """While its image is being written: what :func:`wait` is to be given, else 0."""


class CheckpointError(RuntimeError):
    """There is no checkpoint. The program can go on as if it had not asked for one."""

    code: int
    """The exit code that ``dormouse checkpoint`` would have had: 4 when another one is under way, 5 when the device did not get idle, 6 when the job holds what cannot
    be restored, 10 when the store cannot take the image, ..."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


_Outcome = Optional[Tuple[int, Optional[str], int, Optional[str]]]


def _known(outcome: _Outcome) -> Union[Checkpoint, CheckpointError, None]:
    if outcome is None:
        return None
    code, image, ticket, text = outcome
    if code < 0:
        return CheckpointError(-code, text or "")
    return Checkpoint(image, code == _RESTARTED, ticket if code == _TAKEN else 0)


def _raised(outcome: _Outcome) -> Optional[Checkpoint]:
    known = _known(outcome)
    if isinstance(known, CheckpointError):
        raise known
    return known


def available() -> bool:
    """Whether the program runs under a Dormouse that takes checkpoints for it."""
    return _native.available()


def checkpoint(wait: bool = True, *, stop: bool = False) -> Optional[Checkpoint]:
    """Takes a checkpoint of the whole job.

    Returns when its image is safe, or, unless it is to ``wait``, as soon as the program can go on. With ``stop`` the job ends when the image is safe: the
    call returns in the restarted run alone. ``None`` where there is no Dormouse.

    Raises :class:`CheckpointError` when there is no checkpoint.
    """
    return _raised(_native.checkpoint(not wait, stop))


def wait(taken: Checkpoint) -> Optional[Checkpoint]:
    """Waits until the image of a checkpoint is safe that was taken without waiting.

    Raises :class:`CheckpointError` when it could not be written.
    """
    return _raised(_native.wait(taken.ticket)) if taken.ticket else taken


def convenient_point() -> Optional[Checkpoint]:
    """Says that here a checkpoint suits the program.

    Costs next to nothing unless one is wanted: when ``dormouse checkpoint``, or a regular one of ``dormouse run --every``, waits for such a point. Then it is
    taken here, and returned as soon as the program can go on. ``None`` when none is wanted. One that was wanted and failed is warned of.
    """
    outcome = _native.convenient_point()
    if outcome is None:
        return None
    known = _known(outcome)
    if isinstance(known, CheckpointError):
        warnings.warn(f"no checkpoint was taken: {known}", RuntimeWarning, stacklevel=2)
        return None
    return known


_USAGE = -2

_followed: Dict[int, "weakref.finalize[Any, Any]"] = {}
"""What includes the memory of an excluded object again when it goes, by its ``id``."""


def _memory(what: Any) -> Tuple[int, int]:
    """Where an object's data lies, and how many bytes."""
    if hasattr(what, "data_ptr"):
        if not getattr(what, "is_contiguous", lambda: True)():
            raise ValueError("the tensor does not lie in one piece")
        return what.data_ptr(), what.nbytes
    if hasattr(what, "__cuda_array_interface__"):
        array = what.__cuda_array_interface__
        step = size = int(array["typestr"][2:])
        for count in array["shape"]:
            size *= count
        for count, stride in zip(reversed(array["shape"]), reversed(array.get("strides") or ())):
            if stride != step and count > 1:
                raise ValueError("the array does not lie in one piece")
            step *= count
        return array["data"][0], size
    import ctypes

    view = memoryview(what)
    if not view.c_contiguous:
        raise ValueError("the buffer does not lie in one piece")
    if view.readonly:
        raise ValueError("what is never written need not be excluded")
    return ctypes.addressof(ctypes.c_char.from_buffer(view)) if view.nbytes else 0, view.nbytes


def _tell(address: int, size: int, exclude: bool) -> bool:
    told = _native.exclude(address, size, exclude) if size else None
    if told is None:
        return False
    code, text = told
    if code == _USAGE:
        raise ValueError(text)
    return code == 0


def _gone(number: int, address: int, size: int) -> None:
    _followed.pop(number, None)
    # What was freed is nobody's to include.
    if size:
        _native.exclude(address, size, False)


def exclude(what: Any, size: Optional[int] = None) -> bool:
    """Says that the contents of memory need not be saved: in a restarted run they may be anything. The run that goes on keeps them.

    ``what`` is an object with ``data_ptr()`` and ``nbytes`` (a PyTorch tensor), with ``__cuda_array_interface__`` (CuPy, Numba), with a writable buffer (a NumPy
    array), or an address, with a ``size`` in bytes. Of an object it holds as long as *this very object* lives, since its memory then goes to others: it must not
    be given other memory (resized, ``t.data = ...``, ``set_``, ``Module.to``), and views of it that live longer are saved again. Of an address it holds until :func:`include` or until the memory is freed.

    Returns whether it is left out: ``False`` without Dormouse, of memory that is always saved (pinned, managed, shared), and of too many ranges. Raises
    :class:`ValueError` for what is no memory in one piece, :class:`TypeError` for an object that cannot be referred to weakly (``bytearray``).
    """
    if size is not None:
        return _tell(what, size, True)
    address, size = _memory(what)
    # First of all, so that nothing is excluded that nobody includes.
    follower = weakref.finalize(what, _gone, id(what), address, size)
    follower.atexit = False
    before = _followed.get(id(what))
    if before is not None:
        # Its memory may have been another.
        before()
    _followed[id(what)] = follower
    return _tell(address, size, True)


def include(what: Any, size: Optional[int] = None) -> bool:
    """Says that memory is to be saved again, whatever part of it was excluded. Takes what :func:`exclude` takes; ``False`` without Dormouse."""
    if size is not None:
        return _tell(what, size, False)
    address, size = _memory(what)
    follower = _followed.get(id(what))
    if follower is not None:
        follower()
    return _tell(address, size, False)


def restarts() -> int:
    """How often this run has been restarted."""
    return _native.restarts()


def restarted() -> bool:
    """Whether this run has been restarted."""
    return _native.restarts() > 0


def image() -> Optional[str]:
    """The id of the image that this run was restarted from, if it was."""
    return _native.image()


_Before = TypeVar("_Before", bound=Callable[[], object])
_After = TypeVar("_After", bound=Callable[[Union[Checkpoint, CheckpointError, None]], object])
_Restarted = TypeVar("_Restarted", bound=Callable[[Checkpoint], object])


def before_checkpoint(function: _Before) -> _Before:
    """Has ``function()`` called before each checkpoint that the program asks for, or that is taken at a point of its; by the thread that is there.

    What was registered last comes first. What it raises is reported like an exception in a destructor, and changes nothing. It takes no checkpoint itself.
    """
    _native.on(_BEFORE, lambda _outcome: function())
    return function


def after_checkpoint(function: _After) -> _After:
    """The same after it, in the run that goes on: ``function(outcome)``, which is a :class:`Checkpoint` or the :class:`CheckpointError`."""
    _native.on(_AFTER, lambda outcome: function(_known(outcome)))
    return function


def after_restart(function: _Restarted) -> _Restarted:
    """The same in the run that was restarted from it: ``function(checkpoint)``."""
    _native.on(_AFTER_RESTART, lambda outcome: function(_known(outcome)))  # type: ignore[arg-type]
    return function
