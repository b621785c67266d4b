"""Writing files so that a crash leaves either the old file or the new one."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

__all__ = ["write_atomically", "write_text"]


def write_atomically(path: str | os.PathLike[str], write: Callable[[BinaryIO], None]) -> Path:
    """Write a file through a temporary neighbour that takes its place when complete.

    A reader sees the previous content or the new one, never a part, whenever the process dies.

    Args:
        path: Where the file goes; its folder is created when missing.
        write: Called once with a binary file to fill.

    Returns:
        The path written.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = write_atomically(f"{folder}/new/note.txt", lambda file: file.write(b"hello"))
        ...     path.read_text()
        'hello'
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        # mkstemp makes files only their owner can read; give this one the usual rights.
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(name, 0o666 & ~umask)
        os.replace(name, target)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
        raise
    return target


def write_text(path: str | os.PathLike[str], text: str) -> Path:
    """Write text as `write_atomically` does, in UTF-8.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_text(f"{folder}/note.md", "±").read_text(encoding="utf-8")
        '±'
    """

    def write(file: BinaryIO) -> None:
        file.write(text.encode())

    return write_atomically(path, write)
