"""Compiled kernels on disk. A cubin is code that runs in this process' GPU context, so nothing is
taken from a place that another user can write to.

The folder belongs to the user and is closed to everybody else (0700); a folder that is not is
refused, with a warning, and then nothing is kept. Files are opened through the folder that was
checked, never through a link, and their owner is checked as well. They are written under another
name and renamed, so that another process sees a whole file or none; a digest tells a file that was
damaged, which counts as none.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import stat
import warnings
from collections.abc import Iterator
from pathlib import Path

from lazyeng import config


class CacheWarning(UserWarning):
    """Compiled kernels are not kept, or not taken, from disk."""


class DiskCache:
    """Files by key in one folder, which is made when the first is kept. Any thread or process."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or config.read().cache_dir / "triton"
        self._refused = False

    def get(self, key: str) -> bytes | None:
        """What was kept under the key; None if nothing was, or it is damaged or not ours."""
        try:
            with self._opened() as folder:
                return None if folder is None else self._read(folder, key)
        except OSError as error:
            self._refuse(f"cannot be read: {error}")
            return None

    def put(self, key: str, data: bytes) -> None:
        """Keeps the data; a warning if that cannot be done."""
        try:
            if not self._refused:
                self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with self._opened() as folder:
                if folder is not None:
                    self._write(folder, key, data)
        except OSError as error:
            self._refuse(f"cannot be written: {error}")

    @contextlib.contextmanager
    def _opened(self) -> Iterator[int | None]:
        """The folder, checked; None if it is not there, or refused."""
        if self._refused:
            yield None
            return
        try:
            folder = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except FileNotFoundError:
            yield None
            return
        try:
            fault = _fault(os.fstat(folder))
            if fault:
                self._refuse(f"{fault}; expected one of user {os.getuid()} with mode 0700")
            yield None if fault else folder
        finally:
            os.close(folder)

    def _read(self, folder: int, key: str) -> bytes | None:
        # (Without O_NONBLOCK, opening a pipe waits for somebody who writes to it.)
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
        try:
            handle = os.open(key, flags, dir_fd=folder)
        except OSError:  # not there, or a link
            return None
        with os.fdopen(handle, "rb") as file:
            status = os.fstat(handle)
            if not stat.S_ISREG(status.st_mode) or _fault(status):
                return None
            digest, data = file.read(32), file.read()
        return data if hashlib.sha256(data).digest() == digest else None

    def _write(self, folder: int, key: str, data: bytes) -> None:
        name = f".{key[:16]}.{secrets.token_hex(8)}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        handle = os.open(name, flags, 0o600, dir_fd=folder)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(hashlib.sha256(data).digest() + data)
            os.replace(name, key, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(name, dir_fd=folder)
            raise

    def _refuse(self, why: str) -> None:
        if not self._refused:
            self._refused = True
            warnings.warn(
                f"lazyeng: no compiled kernels are kept in {self.folder}, which {why}",
                CacheWarning,
                stacklevel=2,
            )


def _fault(status: os.stat_result) -> str | None:
    """What lets another user write there."""
    if status.st_uid != os.getuid():
        return f"belongs to user {status.st_uid}"
    if status.st_mode & 0o077:
        return f"others may use (mode {stat.S_IMODE(status.st_mode):04o})"
    return None
