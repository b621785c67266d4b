"""How many threads to use, and for what."""

from __future__ import annotations

import contextlib
import math
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import torch
from torch import Tensor

__all__ = ["Scratch", "side_by_side", "threads_for"]

Item = TypeVar("Item")

#: Multiplications in a step from which on several threads pay.
WORK_FOR_THREADS = 200_000_000


@contextlib.contextmanager
def threads_for(work: int) -> Iterator[None]:
    """Use one thread where a step has little to do, and as many as before otherwise.

    Threads that wait for one another cost more than they bring to small steps, and many times more
    on a machine with other work to do.

    Args:
        work: Multiplications in a step.
    """
    with _threads(1 if work < WORK_FOR_THREADS else torch.get_num_threads()):
        yield


class Scratch(threading.local):
    """Memory that a thread uses again for one piece of work after another, in the cache still.

    Examples:
        >>> scratch = Scratch()
        >>> first, second = scratch(2, (3, 4), torch.zeros(0))
        >>> first.shape, scratch(2, (4, 2), first)[0].data_ptr() == first.data_ptr()
        (torch.Size([3, 4]), True)
    """

    def __init__(self) -> None:
        self._memory = torch.empty(0)

    def __call__(self, pieces: int, shape: tuple[int, ...], like: Tensor) -> list[Tensor]:
        """Pieces of memory of one shape, with anything in them.

        Args:
            pieces: How many.
            shape: Of each.
            like: Has their float type and device.
        """
        size, memory = math.prod(shape), self._memory
        if memory.numel() < pieces * size or (memory.dtype, memory.device) != (
            like.dtype, like.device,
        ):  # fmt: skip
            self._memory = memory = like.new_empty(pieces * size)
        return [memory[i * size : (i + 1) * size].view(shape) for i in range(pieces)]


def side_by_side(work: Callable[[Item], None], items: Iterable[Item]) -> Iterator[Item]:
    """Do a piece of work for each item, on as many threads as torch has, a piece on one thread.

    Pieces of many small operations gain more from this than from threads within each operation,
    which have to meet after every one. The items are made here, while others are worked on, and no
    more of them ahead than keep all threads busy. No gradients are recorded.

    Args:
        work: What to do; pieces must not touch one another's results.
        items: What to do it for.

    Yields:
        The items in their order, each when it is done.

    Examples:
        >>> squares = torch.zeros(3)
        >>> def square(i):
        ...     squares[i] = i**2
        >>> list(side_by_side(square, range(3))), squares
        ([0, 1, 2], tensor([0., 1., 4.]))
    """
    count = torch.get_num_threads()
    quiet = torch.no_grad()(work)  # whether gradients are recorded is a thread's own affair
    if count == 1:
        for item in items:
            quiet(item)
            yield item
        return
    waiting: deque[tuple[Item, Future[None]]] = deque()
    with _threads(1), ThreadPoolExecutor(count) as pool:
        try:
            for item in items:
                waiting.append((item, pool.submit(quiet, item)))
                if len(waiting) > 2 * count:
                    yield _done(waiting)
            while waiting:
                yield _done(waiting)
        finally:
            for _, future in waiting:
                future.cancel()


def _done(waiting: deque[tuple[Item, Future[None]]]) -> Item:
    item, future = waiting.popleft()
    future.result()
    return item


@contextlib.contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
