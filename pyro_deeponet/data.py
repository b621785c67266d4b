"""The training triples (input function, location, output), none of them held twice."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyro_deeponet.arrays import (
    ArrayLike,
    check_finite,
    check_matrix,
    check_outputs,
    common_float,
    to_booleans,
    to_integers,
    to_tensor,
)
from pyro_deeponet.formats import read_npz
from pyro_deeponet.storage import write_atomically

__all__ = ["OperatorData"]


@dataclass(frozen=True, eq=False, repr=False, init=False)
class OperatorData:
    """Observations of an operator: `n` input functions and their outputs at some locations.

    Each input function and each location is held once. Function `i` was observed at all of `y`,
    or, with `index`, at `y[index[i]]`. Tensors, numpy arrays and nested lists are taken; whole
    numbers become floats where that is exact, and the three arrays get one common float type.

    Args:
        u: Input functions at the sensors, `(n, k)`.
        y: Distinct locations, `(q, d)`.
        s: Outputs, `(n, q)`, or `(n, m)` with `index`; `(n, q, c)` or `(n, m, c)` for an operator
            with `c` outputs at each location, such as angle and speed.
        index: Which rows of `y` function `i` was observed at, `(n, m)`.
        mask: Which entries of `s` are real, of the shape of `s`, or without its last dimension
            where all outputs of a point are missing together. For functions with different
            numbers of points, and for missing values. Entries marked `False` are never read.
        source: Where the data came from, shown in the `repr`.

    Raises:
        ValueError: Shapes that do not agree, values that are not finite, an empty set, ...
        TypeError: Something that is not a numeric array.

    Examples:
        >>> data = OperatorData(u=[[0.0, 1.0, 2.0]], y=[[0.0], [1.0]], s=[[0.0, 2.0]])
        >>> data
        OperatorData(1 function x 2 points, 3 sensors, 2 locations in 1 coordinate, float32)
        >>> len(data), data.observed_locations(0).tolist()
        (1, [[0.0], [1.0]])
        >>> OperatorData(u=[[0.0, 1.0, 2.0]], y=[[0.0], [1.0]], s=[[[0.0, 1.0], [2.0, 3.0]]])
        OperatorData(1 function x 2 points x 2 outputs, 3 sensors, 2 locations in ..., float32)
    """

    u: Tensor
    y: Tensor
    s: Tensor
    index: Tensor | None = None
    mask: Tensor | None = None
    source: str = ""

    def __init__(
        self,
        u: ArrayLike,
        y: ArrayLike,
        s: ArrayLike,
        index: ArrayLike | None = None,
        mask: ArrayLike | None = None,
        source: str = "",
    ) -> None:
        arrays = {"u": to_tensor("u", u), "y": to_tensor("y", y), "s": to_tensor("s", s)}
        if index is None:
            _refuse_other_layouts(**arrays)
        for name, fix in (("u", "u[None, :]"), ("y", "y[:, None]")):
            check_matrix(name, arrays[name], fix)
        check_outputs("s", arrays["s"])
        n, k, q, d = *arrays["u"].shape, *arrays["y"].shape
        if 0 in (n, k, q, d):
            raise ValueError(
                f"the data set is empty: u has shape {(n, k)}, y {(q, d)}; "
                "at least one function, sensor, location and coordinate are needed"
            )
        tensors = common_float(arrays)
        device = tensors["u"].device
        where = None if index is None else to_integers("index", index).to(device)
        real = None if mask is None else to_booleans("mask", mask).to(device)
        if real is not None and real.dim() == 2 and arrays["s"].dim() == 3:
            real = real[..., None].expand(*real.shape, arrays["s"].shape[2]).contiguous()
        self._check_shapes(arrays["s"], where, real, n, q)
        if real is not None:  # what stands at masked entries must not reach a computation
            tensors["s"] = tensors["s"].to(device).masked_fill(~real, 0)
            where = None if where is None else where.masked_fill(~_points(real), 0)
            real = None if real.all() else real
        if where is not None and (where.min() < 0 or where.max() >= q):
            raise ValueError(
                f"index runs from {int(where.min())} to {int(where.max())}, "
                f"but y has {q} rows, so expected 0 to {q - 1}"
            )
        for name, tensor in tensors.items():
            hint = "; or pass mask=np.isfinite(s) to mark missing outputs" if name == "s" else ""
            check_finite(name, tensor, hint)
            object.__setattr__(self, name, tensor.to(device))
        object.__setattr__(self, "index", where)
        object.__setattr__(self, "mask", real)
        object.__setattr__(self, "source", source)

    @staticmethod
    def _check_shapes(s: Tensor, index: Tensor | None, mask: Tensor | None, n: int, q: int) -> None:
        if index is not None:
            check_matrix("index", index, "index[None, :]")
            if index.shape[0] != n or index.shape[1] == 0:
                raise ValueError(
                    f"index has shape {tuple(index.shape)}, expected ({n}, m): "
                    f"a row for each of the {n} functions in u, and at least one point"
                )
        expected = (n, q) if index is None else tuple(index.shape)
        if tuple(s.shape[:2]) != expected:
            per = "a column for each row of y" if index is None else "the shape of index"
            raise ValueError(
                f"s has shape {tuple(s.shape)}, expected {(*expected, *s.shape[2:])}: "
                f"a row for each function in u, {per}"
            )
        expected = tuple(s.shape)
        if mask is not None:
            if tuple(mask.shape) != expected:
                raise ValueError(f"mask has shape {tuple(mask.shape)}, expected {expected}, as s")
            some = mask.flatten(1).any(1)
            if not some.all():
                row = int((~some).nonzero()[0])
                raise ValueError(
                    f"function {row} has no observed point: its mask is False everywhere; "
                    "leave it out"
                )

    @classmethod
    def from_rows(cls, u: ArrayLike, y: ArrayLike, s: ArrayLike) -> OperatorData:
        """Build a data set from one row per observation, as in the `nm x k` matrix of the paper.

        Equal rows of `u` become one function, equal rows of `y` one location, in the order of
        their first appearance. Functions with different numbers of rows get a mask. Where every
        function has every location once, the result needs no index.

        Args:
            u: Input function of each observation, `(N, k)`.
            y: Location of each observation, `(N, d)`.
            s: Output of each observation, `(N,)` or `(N, 1)`; `(N, c)` for several outputs.

        Examples:
            >>> OperatorData.from_rows(u=[[1.0, 2.0], [1.0, 2.0]], y=[[0.0], [0.5]], s=[3.0, 4.0])
            OperatorData(1 function x 2 points, 2 sensors, 2 locations in 1 coordinate, float32)
        """
        arrays = {"u": to_tensor("u", u), "y": to_tensor("y", y), "s": to_tensor("s", s)}
        if arrays["s"].dim() == 2 and arrays["s"].shape[1] == 1:
            arrays["s"] = arrays["s"][:, 0]
        rows = arrays["u"].shape[0] if arrays["u"].dim() else 0
        check_matrix("u", arrays["u"], "u[None, :] for one row, u[:, None] for one sensor")
        check_matrix("y", arrays["y"], "y[:, None] for one coordinate")
        if arrays["y"].shape[0] != rows or arrays["s"].dim() > 2 or len(arrays["s"]) != rows:
            raise ValueError(
                f"u has {rows} rows, y {arrays['y'].shape[0]} and s has shape "
                f"{tuple(arrays['s'].shape)}; from_rows takes one row of each per observation. "
                "For functions that share their locations call OperatorData(u, y, s)"
            )
        if rows == 0:
            raise ValueError("the data set is empty: u, y and s have no rows")
        tensors = common_float(arrays)
        for name, tensor in tensors.items():
            check_finite(name, tensor)
        device = tensors["u"].device
        u_rows, y_rows, values = (tensors[name].cpu().numpy() for name in ("u", "y", "s"))
        function, first_u = _distinct(u_rows)
        location, first_y = _distinct(y_rows)
        n, q = len(first_u), len(first_y)

        counts = np.bincount(function, minlength=n)
        m = int(counts.max())
        order = np.argsort(function, kind="stable")
        starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
        column = np.arange(rows) - np.repeat(starts, counts)
        index = np.zeros((n, m), dtype=np.int64)
        index[function[order], column] = location[order]
        out = np.zeros((n, m, *values.shape[1:]), dtype=values.dtype)
        out[function[order], column] = values[order]
        mask = np.arange(m) < counts[:, None]
        complete = m == q and bool(mask.all())
        if complete and (np.sort(index, axis=1) == np.arange(q)).all():
            grid = np.empty_like(out)
            grid[np.arange(n)[:, None], index] = out
            return cls(u_rows[first_u], y_rows[first_y], grid).to(device)
        return cls(u_rows[first_u], y_rows[first_y], out, index, mask).to(device)

    @classmethod
    def from_npz(
        cls, path: str | os.PathLike[str], part: str = "train", *, allow_pickle: bool = False
    ) -> OperatorData:
        """Read a `.npz` file: ours, plain `u, y, s`, or DeepXDE's, aligned or not.

        What the file was taken for stands in `data.source` and in the `repr`.

        Args:
            path: The file.
            part: `"train"` or `"test"`, for files that hold both.
            allow_pickle: DeepXDE's single array `X` of two arrays is stored as a Python pickle,
                and reading a pickle can run any code its author put there. Pass `True` only for
                files you trust.

        Raises:
            ValueError: Not a `.npz`, cut short, unknown array names, or a pickle not opted into.

        Examples:
            >>> import tempfile
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     path = f"{folder}/mine.npz"
            ...     np.savez(path, u=np.zeros((5, 3)), y=np.zeros((2, 1)), s=np.ones((5, 2)))
            ...     OperatorData.from_npz(path)
            OperatorData(5 functions x 2 points, 3 sensors, 2 locations in 1 coordinate, ...)
        """
        layout = read_npz(path, part, allow_pickle)
        arrays: dict[str, Any] = layout.arrays
        data = cls.from_rows(**arrays) if layout.rows else cls(**arrays)
        return replace(data, source=layout.source)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the data as `.npz`, all of it or nothing.

        Args:
            path: The file; its folder is created when missing.

        Returns:
            The path written.

        Examples:
            >>> import tempfile
            >>> data = OperatorData(u=[[0.0, 1.0]], y=[[0.5]], s=[[2.0]])
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     sorted(np.load(data.save(f"{folder}/data.npz")))
            ['s', 'u', 'y']
        """
        arrays = {"u": self.u, "y": self.y, "s": self.s, "index": self.index, "mask": self.mask}
        present: dict[str, Any] = {
            name: tensor.cpu().numpy() for name, tensor in arrays.items() if tensor is not None
        }
        return write_atomically(path, lambda file: np.savez(file, **present))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> OperatorData:
        """Read what `save` wrote.

        Examples:
            >>> import tempfile
            >>> data = OperatorData(u=[[0.0, 1.0]], y=[[0.5]], s=[[2.0]])
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     again = OperatorData.load(data.save(f"{folder}/data.npz"))
            >>> again == data
            True
        """
        return replace(cls.from_npz(path), source="")

    def __len__(self) -> int:
        return self.u.shape[0]

    @property
    def outputs(self) -> int | None:
        """Number `c` of outputs at a location, or `None` where `s` is `(n, q)`: a single one.

        Examples:
            >>> OperatorData(u=[[0.0]], y=[[0.0], [1.0]], s=[[[0.0, 1.0], [2.0, 3.0]]]).outputs
            2
        """
        return self.s.shape[2] if self.s.dim() == 3 else None

    @property
    def num_observations(self) -> int:
        """How many numbers were observed, over all functions.

        Examples:
            >>> data = OperatorData([[0.0], [1.0]], [[0.5], [1.0]], s=[[1.0, 2.0], [3.0, 0.0]],
            ...                     mask=[[True, True], [True, False]])
            >>> data.num_observations
            3
        """
        return self.s.numel() if self.mask is None else int(self.mask.sum())

    def output(self, i: int) -> OperatorData:
        """The data of one of several outputs, with `s` `(n, q)`.

        Examples:
            >>> data = OperatorData(u=[[0.0]], y=[[0.0], [1.0]], s=[[[0.0, 1.0], [2.0, 3.0]]])
            >>> data.output(1).s.tolist()
            [[1.0, 3.0]]
        """
        if self.outputs is None or not -self.outputs <= i < self.outputs:
            raise ValueError(f"there is no output {i}: s has shape {tuple(self.s.shape)}")
        mask = None if self.mask is None else self.mask[..., i]
        return replace(self, s=self.s[..., i], mask=mask)

    def observed_locations(self, i: int) -> Tensor:
        """Locations at which function `i` was observed, `(m_i, d)`.

        Examples:
            >>> data = OperatorData([[0.0], [1.0]], [[0.5], [1.0]], s=[[1.0], [3.0]],
            ...                     index=[[1], [0]])
            >>> data.observed_locations(0).tolist()
            [[1.0]]
        """
        y = self.y if self.index is None else self.y[self.index[i]]
        return y if self.mask is None else y[_points(self.mask)[i]]

    def subset(
        self, indices: int | slice | Sequence[int] | Sequence[bool] | Tensor
    ) -> OperatorData:
        """Some of the functions, in the order given; the locations stay.

        Args:
            indices: A number, a slice, a list or tensor of numbers, or a boolean for each function.

        Examples:
            >>> data = OperatorData(u=[[0.0], [1.0], [2.0]], y=[[0.5]], s=[[0.0], [2.0], [4.0]])
            >>> data.subset([2, 0]).u.tolist()
            [[2.0], [0.0]]
        """
        n = len(self)
        if isinstance(indices, slice):
            chosen = torch.arange(n)[indices]
        else:
            chosen = torch.atleast_1d(torch.as_tensor(indices)).cpu()
            if chosen.dtype == torch.bool:
                if tuple(chosen.shape) != (n,):
                    raise ValueError(f"indices are {tuple(chosen.shape)} booleans, expected ({n},)")
                chosen = chosen.nonzero()[:, 0]
            elif chosen.numel() and (chosen.is_floating_point() or chosen.dim() != 1):
                raise TypeError(f"indices must be whole numbers in one row, got {indices!r}")
        if chosen.numel() == 0:
            raise ValueError("the subset is empty: name at least one function")
        if chosen.min() < -n or chosen.max() >= n:
            raise ValueError(
                f"indices run from {int(chosen.min())} to {int(chosen.max())}, "
                f"but there are {n} functions"
            )
        chosen = (chosen % n).to(self.u.device)
        pick: dict[str, Any] = {"u": self.u[chosen], "s": self.s[chosen]}
        if self.index is not None:
            pick["index"] = self.index[chosen]
        if self.mask is not None:
            pick["mask"] = self.mask[chosen]
        return replace(self, **pick)

    def split(self, fraction: float, seed: int = 0) -> tuple[OperatorData, OperatorData]:
        """Two disjoint random sets of functions, the first with `fraction` of them.

        Examples:
            >>> data = OperatorData(u=[[0.0], [1.0], [2.0], [3.0]], y=[[0.5]], s=[[1.0]] * 4)
            >>> train, held_out = data.split(0.75, seed=0)
            >>> len(train), len(held_out)
            (3, 1)
        """
        first = round(fraction * len(self)) if 0 < fraction < 1 else 0
        if not 0 < first < len(self):
            raise ValueError(
                f"fraction {fraction} of {len(self)} functions leaves one side empty; "
                "it must lie between 0 and 1 and leave a function on each side"
            )
        order = np.random.default_rng(seed).permutation(len(self))
        return self.subset(order[:first].tolist()), self.subset(order[first:].tolist())

    def to(self, *args: Any, **kwargs: Any) -> OperatorData:
        """A copy in another float type or on another device, as `torch.Tensor.to`.

        Examples:
            >>> OperatorData(u=[[0.0, 1.0]], y=[[0.5]], s=[[2.0]]).to(torch.float64).u.dtype
            torch.float64
        """
        u, y, s = (tensor.to(*args, **kwargs) for tensor in (self.u, self.y, self.s))
        index, mask = (None if t is None else t.to(u.device) for t in (self.index, self.mask))
        return replace(self, u=u, y=y, s=s, index=index, mask=mask)

    def to_rows(self) -> tuple[Tensor, Tensor, Tensor]:
        """One row per observation: `u (N, k)`, `y (N, d)`, `s (N,)`. For comparison and export.

        With several outputs `s` is `(N, c)`, NaN for those that are missing beside others.

        Examples:
            >>> data = OperatorData(u=[[0.0, 1.0]], y=[[0.5], [1.0]], s=[[2.0, 3.0]])
            >>> [rows.tolist() for rows in data.to_rows()]
            [[[0.0, 1.0], [0.0, 1.0]], [[0.5], [1.0]], [2.0, 3.0]]
        """
        function, location, s = self._triples()
        return self.u[function], self.y[location], s

    def _triples(self) -> tuple[Tensor, Tensor, Tensor]:
        n, m, *several = self.s.shape
        function = torch.arange(n, device=self.s.device)[:, None].expand(n, m)
        index = torch.arange(m, device=self.s.device).expand(n, m)
        location = index if self.index is None else self.index
        if self.mask is None:
            return function.reshape(-1), location.reshape(-1), self.s.reshape(-1, *several)
        real = _points(self.mask)
        s = self.s.masked_fill(~self.mask, torch.nan) if several else self.s
        return function[real], location[real], s[real]

    def __eq__(self, other: object) -> bool:
        """Whether both hold the same observations of the same functions, in any layout."""
        if not isinstance(other, OperatorData):
            return NotImplemented
        if not torch.equal(self.u.cpu(), other.u.cpu()) or self.y.shape[1] != other.y.shape[1]:
            return False
        rows = self._sorted_rows(), other._sorted_rows()
        return self.outputs == other.outputs and bool(np.array_equal(*rows, equal_nan=True))

    __hash__ = None  # type: ignore[assignment]

    def _sorted_rows(self) -> np.ndarray:
        function, location, s = (t.cpu() for t in self._triples())
        parts = function[:, None], self.y.cpu()[location], s.reshape(len(s), -1)
        rows = torch.cat([part.double() for part in parts], 1).numpy()
        return rows[np.lexsort(rows.T[::-1])]

    def __repr__(self) -> str:
        whole = torch.tensor([self.s.shape[1]])
        counts = whole if self.mask is None else _points(self.mask).sum(1)
        low, high = int(counts.min()), int(counts.max())
        points = str(high) if low == high else f"{low} to {high}"
        (n, k), (q, d) = self.u.shape, self.y.shape
        parts = [
            f"{n} function{'s' * (n > 1)} x {points} point{'s' * (high > 1)}"
            + (
                ""
                if self.outputs is None
                else f" x {self.outputs} output{'s' * (self.outputs > 1)}"
            ),
            f"{k} sensor{'s' * (k > 1)}",
            f"{q} location{'s' * (q > 1)} in {d} coordinate{'s' * (d > 1)}",
            str(self.u.dtype).removeprefix("torch."),
        ]
        if self.u.device.type != "cpu":
            parts.append(f"on {self.u.device}")
        if self.source:
            parts.append(self.source)
        return f"OperatorData({', '.join(parts)})"


def _refuse_other_layouts(u: Tensor, y: Tensor, s: Tensor) -> None:
    """Say what to call for layouts that are often taken for `u (n, k)`, `y (q, d)`, `s (n, q)`."""
    if y.dim() == 3:
        raise ValueError(
            f"y has shape {tuple(y.shape)}, expected (q, d): each distinct location once. For "
            "locations (n, m, d) of each function's own call OperatorData.from_rows("
            "u.repeat(m, axis=0), y.reshape(n * m, d), s.reshape(n * m)) with numpy arrays"
        )
    rows = s.numel() if s.dim() == 1 or (s.dim() == 2 and s.shape[1] == 1) else 0
    if rows > 1 and (u.dim(), y.dim(), len(u), len(y)) == (2, 2, rows, rows):
        raise ValueError(
            f"u, y and s have {rows} rows each, one for each observation; "
            "call OperatorData.from_rows(u, y, s)"
        )


def _points(mask: Tensor) -> Tensor:
    """Which points have a real output, `(n, m)`."""
    return mask.any(2) if mask.dim() == 3 else mask


def _distinct(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Number equal rows alike: each row's number, and where each number appears first."""
    content = np.ascontiguousarray(rows + 0.0).tobytes()  # + 0.0 makes -0.0 and 0.0 one
    width = len(content) // len(rows)
    seen: dict[bytes, int] = {}
    numbers = np.fromiter(
        (seen.setdefault(content[i : i + width], len(seen)) for i in range(0, len(content), width)),
        dtype=np.int64,
        count=len(rows),
    )
    return numbers, np.unique(numbers, return_index=True)[1]
