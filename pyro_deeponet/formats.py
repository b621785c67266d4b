"""The `.npz` layouts that data sets for operator learning come in."""

from __future__ import annotations

import os
import zipfile
import zlib
from typing import Any, NamedTuple

import numpy as np

__all__ = ["Layout", "read_npz"]

KNOWN = (
    "u, y, s (and index, mask); "
    "X, y or X0, X1, y or X_train0, X_train1, y_train (and the same with _test), as DeepXDE's"
)


class Layout(NamedTuple):
    """What a file was taken for.

    Args:
        arrays: `u`, `y`, `s` and, where the file has them, `index` and `mask`.
        rows: Whether there is a row for each observation, as `OperatorData.from_rows` takes them.
        source: The layout in words.
    """

    arrays: dict[str, np.ndarray]
    rows: bool
    source: str


def read_npz(path: str | os.PathLike[str], part: str, allow_pickle: bool) -> Layout:
    """Read the arrays of a `.npz` file and recognise their layout; see `OperatorData.from_npz`.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = f"{folder}/data.npz"
        ...     np.savez(path, X0=np.ones((2, 5)), X1=np.ones((3, 1)), y=np.ones((2, 3)))
        ...     layout = read_npz(path, part="train", allow_pickle=False)
        >>> layout.source
        'DeepXDE aligned (X0, X1, y)'
    """
    if part not in ("train", "test"):
        raise ValueError(f"part is {part!r}, expected 'train' or 'test'")
    arrays = _arrays(path, allow_pickle)
    if {"u", "y", "s"} <= arrays.keys():
        ours = {name: a for name, a in arrays.items() if name in ("u", "y", "s", "index", "mask")}
        count = ours["s"].size
        same = len(ours["u"]) == len(ours["y"]) == len(ours["s"]) == count > 1
        if same and len(ours) == 3:
            return Layout(ours, rows=True, source="u, y, s rows")
        return Layout(ours, rows=False, source="u, y, s arrays")
    for names in (
        (f"X_{part}0", f"X_{part}1", f"y_{part}"),
        (f"X_{part}", f"y_{part}"),
        ("X0", "X1", "y"),
        ("X", "y"),
    ):
        if set(names) <= arrays.keys():
            return _deepxde(path, names, arrays)
    raise ValueError(
        f"{path} holds the arrays {sorted(arrays)}, expected one of {KNOWN} (for {part!r}). "
        "Rename them, or load them with numpy and call OperatorData(u, y, s)"
    )


def _deepxde(
    path: str | os.PathLike[str], names: tuple[str, ...], arrays: dict[str, np.ndarray]
) -> Layout:
    *inputs, output = (arrays[name] for name in names)
    if len(inputs) == 1:
        if len(inputs[0]) != 2:
            raise ValueError(
                f"{path}: {names[0]} holds {len(inputs[0])} arrays, expected two: "
                "branch inputs and locations"
            )
        inputs = [np.asarray(item, dtype=float) for item in inputs[0]]
    branch, trunk = inputs
    listing = ", ".join(names)
    if output.ndim > 1 and output.shape[:2] == (len(branch), len(trunk)):
        return Layout({"u": branch, "y": trunk, "s": output}, False, f"DeepXDE aligned ({listing})")
    if len(branch) == len(trunk) == len(output):
        rows = {"u": branch, "y": trunk, "s": output}
        return Layout(rows, True, f"DeepXDE unaligned ({listing})")
    raise ValueError(
        f"{path}: {listing} have shapes {', '.join(str(a.shape) for a in (*inputs, output))}; "
        "expected (n, k), (q, d), (n, q), or a row a point: (N, k), (N, d), (N, 1)"
    )


def _arrays(path: str | os.PathLike[str], allow_pickle: bool) -> dict[str, np.ndarray]:
    # A bare pickle is no zip archive, so it never gets as far as numpy.
    with open(path, "rb") as file:
        if not zipfile.is_zipfile(file):
            raise ValueError(
                f"{path} is not a complete .npz file: it was cut short or is of another format. "
                "Make it again with np.savez, or load it yourself and call OperatorData(u, y, s)"
            )
    arrays: dict[str, Any] = {}
    name = ""
    try:
        with np.load(path, allow_pickle=allow_pickle) as archive:
            for name in archive.files:
                arrays[name] = archive[name]
                if not isinstance(arrays[name], np.ndarray):
                    raise ValueError(f"{path}: {name} is not a numpy array; .npz files hold arrays")
    except ValueError as error:
        if "allow_pickle" not in str(error):
            raise ValueError(f"{path}: cannot read array {name!r}: {error}") from None
        raise ValueError(
            f"{path}: array {name!r} is a pickled Python object, and reading a pickle can run any "
            "code its author put there. If you trust the file pass allow_pickle=True; "
            "better, save plain arrays (X0, X1, y)"
        ) from None
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError) as error:
        raise ValueError(f"{path} is damaged (at array {name!r}): {error}") from None
    return arrays
