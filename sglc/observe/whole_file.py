"""A file that is written when all that it holds is known: until then, and where that fails, the old one stays.

A symbolic link stays one. What is no regular file (a pipe, `/dev/null`) is written to as it is. So is a file of
another owner, with several names, whose folder takes no other beside it, or that is mounted alone.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from contextlib import suppress


def check_writable(path: str | os.PathLike[str]) -> None:
    """Raises OSError, whose `strerror` says why: `write_whole` fails, as far as that shows before."""
    place = _place(path)
    folder = os.path.dirname(place) or "."
    if not os.path.isdir(folder):
        raise FileNotFoundError(errno.ENOENT, f"there is no folder `{folder}`")
    if os.path.isdir(place) or not os.path.basename(place):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    with suppress(FileNotFoundError):
        os.stat(place)  # a name may be too long
    if not os.access(place if os.path.exists(place) else folder, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def write_whole(path: str | os.PathLike[str], text: str) -> None:
    """Have a file with this text, or what was there before.

    Raises:
        OSError: it cannot be written.
    """
    place = _place(path)
    there = os.path.exists(place)
    if not there or _may_be_replaced(place):
        beside = os.path.join(os.path.dirname(place), f".sglc-{os.urandom(6).hex()}")
        try:
            with open(beside, "x", encoding="utf-8") as file:
                file.write(text)
            if there:
                shutil.copymode(place, beside)
            os.replace(beside, place)
            return
        except OSError as error:
            if error.errno != errno.EBUSY:  # else it is mounted
                raise
        finally:
            with suppress(OSError):
                os.unlink(beside)
    with open(place, "w", encoding="utf-8") as file:
        file.write(text)


def _may_be_replaced(place: str) -> bool:
    status = os.stat(place)
    ours = stat.S_ISREG(status.st_mode) and status.st_nlink == 1 and status.st_uid == os.geteuid()
    return ours and os.access(os.path.dirname(place) or ".", os.W_OK)


def same_file(path: str, other: str) -> bool:
    """Whether both are one regular file, or would be once it is there."""
    try:
        return os.path.samefile(path, other) and os.path.isfile(path)
    except OSError:  # one of them is not there yet
        return os.path.realpath(path) == os.path.realpath(other)


def _place(path: str | os.PathLike[str]) -> str:
    """Where the file itself is; of a pipe that only a link in `/proc` leads to, the link."""
    is_link = os.path.islink(path) and (os.path.isfile(path) or not os.path.exists(path))
    return os.path.realpath(path) if is_link else os.fspath(path)
