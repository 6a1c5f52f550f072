"""Files of compiled kernels: whole, ours, or not taken."""

import multiprocessing
import os
import stat
import tempfile
from pathlib import Path

import pytest

from lazyeng.fuse.disk_cache import CacheWarning, DiskCache

pytestmark = pytest.mark.plain_process

KEY = "ab" * 32
NOBODY = 65534  # a user who is not root


@pytest.fixture
def cache(tmp_path):
    return DiskCache(tmp_path / "outer" / "kernels")


def test_what_is_kept_is_found_by_others(cache):
    assert cache.get(KEY) is None
    cache.put(KEY, b"kernel")
    assert DiskCache(cache.folder).get(KEY) == b"kernel"
    assert cache.get("cd" * 32) is None
    cache.put(KEY, b"")
    assert cache.get(KEY) == b""


def test_only_the_user_may_look(cache):
    old = os.umask(0)
    try:
        cache.put(KEY, b"kernel")
    finally:
        os.umask(old)
    assert stat.S_IMODE(cache.folder.stat().st_mode) == 0o700
    (file,) = cache.folder.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o701])
def test_a_folder_open_to_others_is_refused(cache, mode):
    cache.folder.mkdir(parents=True)
    cache.folder.chmod(mode)
    with pytest.warns(CacheWarning, match=rf"others may use \(mode {mode:04o}\)") as caught:
        cache.put(KEY, b"kernel")
        assert cache.get(KEY) is None
        cache.put(KEY, b"kernel")
    assert len(caught) == 1 and not list(cache.folder.iterdir())


def test_a_folder_of_somebody_else_is_refused(cache, monkeypatch):
    cache.put(KEY, b"kernel")
    monkeypatch.setattr(os, "getuid", lambda: cache.folder.stat().st_uid + 1)
    with pytest.warns(CacheWarning, match="belongs to user"):
        assert cache.get(KEY) is None


def test_a_file_of_somebody_else_is_not_taken(cache, monkeypatch):
    cache.put(KEY, b"kernel")
    real = os.fstat

    def fstat(handle):
        status = real(handle)
        if stat.S_ISDIR(status.st_mode):
            return status
        return os.stat_result([*status[:4], status.st_uid + 1, *status[5:10]])

    monkeypatch.setattr(os, "fstat", fstat)
    assert cache.get(KEY) is None


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away")
def test_a_file_given_to_somebody_else_is_not_taken(cache):
    cache.put(KEY, b"kernel")
    os.chown(cache.folder / KEY, NOBODY, NOBODY)
    assert cache.get(KEY) is None
    cache.put(KEY, b"ours")
    assert cache.get(KEY) == b"ours"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away")
def test_a_hard_link_to_a_file_of_somebody_else_is_not_taken(cache, tmp_path):
    """Another name of the file: not a link that could be seen when it is opened."""
    theirs = DiskCache(tmp_path / "theirs")
    theirs.put(KEY, b"theirs")
    os.chown(theirs.folder / KEY, NOBODY, NOBODY)
    cache.put("cd" * 32, b"")
    (cache.folder / KEY).hardlink_to(theirs.folder / KEY)
    assert cache.get(KEY) is None
    cache.put(KEY, b"ours")
    assert cache.get(KEY) == b"ours"
    os.chown(theirs.folder / KEY, os.getuid(), os.getgid())
    assert theirs.get(KEY) == b"theirs"  # it was replaced here, not written to


@pytest.mark.limit(20)
def test_a_pipe_is_not_waited_for(cache):
    """Opening one waits for somebody who writes."""
    cache.put("cd" * 32, b"")
    os.mkfifo(cache.folder / KEY, 0o600)
    assert cache.get(KEY) is None
    cache.put(KEY, b"ours")
    assert cache.get(KEY) == b"ours"


def test_links_are_not_followed(cache, tmp_path):
    other = DiskCache(tmp_path / "other")
    other.put(KEY, b"theirs")
    cache.put("cd" * 32, b"")
    (cache.folder / KEY).symlink_to(other.folder / KEY)
    assert cache.get(KEY) is None
    (tmp_path / "link").symlink_to(other.folder)
    with pytest.warns(CacheWarning, match="cannot be read"):
        assert DiskCache(tmp_path / "link").get(KEY) is None


@pytest.mark.parametrize(
    "damage", [b"", b"short", lambda d: d[:-1], lambda d: d[:40] + b"x" + d[41:]]
)
def test_a_damaged_file_counts_as_none(cache, damage):
    cache.put(KEY, b"kernel" * 100)
    file = cache.folder / KEY
    file.write_bytes(damage(file.read_bytes()) if callable(damage) else damage)
    assert cache.get(KEY) is None
    cache.put(KEY, b"anew")
    assert cache.get(KEY) == b"anew"


def test_a_failed_write_leaves_nothing(cache, monkeypatch):
    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.warns(CacheWarning, match="cannot be written: .*No space left"):
        cache.put(KEY, b"kernel")
    assert not list(cache.folder.iterdir())


def _write_often(folder, byte, start):
    cache = DiskCache(folder)
    start.wait()
    for _ in range(300):
        cache.put(KEY, byte * 100_000)


def test_two_processes_write_at_once(cache):
    """Whoever reads meanwhile finds one of the two, whole."""
    context = multiprocessing.get_context("fork")
    start = context.Barrier(3, timeout=60)
    writers = [context.Process(target=_write_often, args=(cache.folder, b, start))
               for b in (b"a", b"b")]  # fmt: skip
    for writer in writers:
        writer.start()
    start.wait()
    seen = set()
    while any(writer.is_alive() for writer in writers):
        found = cache.get(KEY)
        if found is not None:
            seen.add(found)
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    assert seen and seen <= {b"a" * 100_000, b"b" * 100_000}
    assert [file.name for file in cache.folder.iterdir()] == [KEY]


def test_where_it_is(monkeypatch, tmp_path):
    monkeypatch.delenv("LAZYENG_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert DiskCache().folder == tmp_path / "lazyeng" / "triton"
    monkeypatch.setenv("LAZYENG_CACHE_DIR", str(tmp_path / "mine"))
    assert DiskCache().folder == tmp_path / "mine" / "triton"


def test_where_it_is_without_a_home_directory(monkeypatch):
    """Of a user whom the system does not know, as in containers; the import works, too."""

    def unknown():
        raise RuntimeError("Could not determine home directory.")

    for name in ("LAZYENG_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", unknown)
    folder = Path(tempfile.gettempdir()) / f"lazyeng-{os.getuid()}"
    assert DiskCache().folder == folder / "triton"
