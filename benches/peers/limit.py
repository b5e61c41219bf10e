"""Programs that run in so much memory and no more, page cache included, and disks as fast as they are without it."""

import ctypes
import mmap
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time

from llama import Failed

LIBC = ctypes.CDLL(None, use_errno=True)
PR_SET_PDEATHSIG = 1
DROP_CACHES = pathlib.Path("/proc/sys/vm/drop_caches")
# Allocations of the kernel and of this program, in addition to a balloon.
BALLOON_SPARE = 256 << 20


class Done:
    """A program that has ended: what it printed, and the most memory that it had resident (VmHWM)."""

    def __init__(self, stdout, stderr, bytes_most):
        self.stdout, self.stderr, self.bytes_most = stdout, stderr, bytes_most


def run(command, limit=None, env=None):
    """Runs it, below `limit` where one is given. An error quotes the end of stderr."""
    command = [str(part) for part in command]
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:

        def enter():
            LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if limit:
                limit.enter()

        # Only this thread is alive here: between fork and exec all is well.
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            env=env,
            preexec_fn=enter,  # noqa: PLW1509
        )
        try:
            _, status, usage = os.wait4(process.pid, 0)
        except BaseException:
            process.kill()
            raise
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        err.seek(0)
        done = Done(out.read(), err.read(), usage.ru_maxrss << 10)
    if process.returncode:
        name = pathlib.Path(command[0]).name
        killed = (
            f"killed by signal {-process.returncode}"
            if process.returncode < 0
            else f"exit code {process.returncode}"
        )
        if process.returncode == -signal.SIGKILL and limit:
            killed += (
                f", most likely for want of memory: it had {limit.n_bytes / 1e6:.0f} MB"
            )
        last = done.stderr.strip().splitlines()[-1:] or ["(no message)"]
        raise Failed(f"{name}: {killed}: {last[0]}")
    return done


def drop_caches(*paths):
    """Takes files out of the page cache, where allowed with all else in it."""
    os.sync()
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)
    if os.access(DROP_CACHES, os.W_OK):
        DROP_CACHES.write_text("1")


# --- Limits ---------------------------------------------------------------------------------------


class Group:
    """A control group with a limit: memory and page cache of what runs in it count."""

    def __init__(self, n_bytes):
        self.n_bytes = n_bytes
        self.folder = None

    def __enter__(self):
        errors = []
        for parent, file in self.places():
            folder = parent / f"peers-{os.getpid()}"
            try:
                folder.mkdir()
            except OSError as error:
                errors.append(f"{folder}: {error.strerror}")
                continue
            try:
                (folder / file).write_text(str(self.n_bytes))
            except OSError as error:
                folder.rmdir()
                errors.append(f"{folder / file}: {error.strerror}")
                continue
            swap = folder / "memory.swap.max"
            if swap.exists():
                swap.write_text("0")
            self.folder = folder
            return self
        raise Failed(
            f"no control group: {'; '.join(errors) or 'the memory controller is not mounted'}"
        )

    @staticmethod
    def places():
        """Where a group may be made, the nearest first, and the file that takes a limit."""
        own = dict(
            line.split(":", 2)[1:]
            for line in pathlib.Path("/proc/self/cgroup").read_text().splitlines()
        )
        for line in pathlib.Path("/proc/self/mountinfo").read_text().splitlines():
            fields, _, kind = line.partition(" - ")
            mount = pathlib.Path(fields.split()[4])
            kind, _, options = kind.split(" ", 2)
            names = [name for name in own if "memory" in name.split(",")]
            if kind == "cgroup" and "memory" in options.split(","):
                path, file = own[names[0]] if names else "/", "memory.limit_in_bytes"
            elif kind == "cgroup2" and not names:
                path, file = own.get("", "/"), "memory.max"
            else:
                continue
            place = mount / path.lstrip("/")
            yield from (
                (folder, file)
                for folder in (place, *place.parents)
                if folder.is_relative_to(mount)
            )

    def enter(self):
        # In the child, between fork and exec.
        fd = os.open(self.folder / "cgroup.procs", os.O_WRONLY)
        os.write(fd, b"0")
        os.close(fd)

    def __exit__(self, *_):
        # What has just ended may still be there for a moment.
        for _ in range(50):
            try:
                self.folder.rmdir()
                return
            except OSError:
                time.sleep(0.1)
        raise Failed(f"{self.folder} cannot be removed")


class Balloon:
    """A process that locks so much memory that only `n_bytes` are left for all others. The page cache of others
    counts, so nothing else should run."""

    def __init__(self, n_bytes):
        self.n_bytes = n_bytes
        self.process = None

    def __enter__(self):
        rest = available() - self.n_bytes - BALLOON_SPARE
        if rest <= 0:
            raise Failed(f"{self.n_bytes / 1e6:.0f} MB are not available")
        command = [sys.executable, __file__, str(rest)]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True
        )
        if self.process.stdout.readline().strip() != "locked":
            self.__exit__()
            raise Failed(f"{rest / 1e6:.0f} MB cannot be locked (ulimit -l)")
        return self

    def enter(self):
        """All processes are below the limit."""

    def __exit__(self, *_):
        # It ends with its stdin.
        self.process.communicate()


def lock(n_bytes):
    """Holds so much memory until stdin ends."""
    memory = mmap.mmap(-1, n_bytes)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    if LIBC.mlock(ctypes.c_void_p(address), ctypes.c_size_t(n_bytes)):
        sys.exit(os.strerror(ctypes.get_errno()))
    print("locked", flush=True)
    sys.stdin.read()


def limited(n_bytes, say):
    """A control group, or a balloon where none can be made."""
    try:
        with Group(n_bytes):
            return Group(n_bytes)
    except Failed as error:
        say(f"{error}; memory is locked instead")
        return Balloon(n_bytes)


def available():
    """Bytes of memory that programs may have."""
    lines = pathlib.Path("/proc/meminfo").read_text().splitlines()
    return next(
        int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable")
    )


# --- Disks ----------------------------------------------------------------------------------------


class ReadAhead:
    """How far the kernel reads ahead in maps of a file, in KiB; with `kib`, another value while it is in use. It
    decides how much more than what is touched is read."""

    def __init__(self, path, kib=None):
        device = os.stat(path).st_dev
        self.file = pathlib.Path(
            f"/sys/class/bdi/{os.major(device)}:{os.minor(device)}/read_ahead_kb"
        )
        self.kib = kib
        self.before = int(self.file.read_text()) if self.file.exists() else None

    def __enter__(self):
        if self.kib is not None:
            try:
                self.file.write_text(str(self.kib))
            except OSError as error:
                raise Failed(f"{self.file}: {error.strerror}") from None
        return self

    def __exit__(self, *_):
        if self.kib is not None:
            self.file.write_text(str(self.before))


def disk_bytes_per_s(path, n_bytes, seconds=3.0, n_threads=8):
    """Bytes per second of direct reads of `n_bytes` at random places of a file, as experts are read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    except OSError as error:
        raise Failed(f"{path}: direct reads: {error.strerror}") from None
    n_bytes = -(-n_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
    n_places = (os.fstat(fd).st_size - n_bytes) // mmap.PAGESIZE
    if n_places < 1:
        raise Failed(f"{path} is too small to measure the disk")
    counts, errors = [0] * n_threads, []
    begin = time.perf_counter()

    def read(i):
        places, memory = random.Random(i), mmap.mmap(-1, n_bytes)
        try:
            while time.perf_counter() < begin + seconds:
                counts[i] += os.preadv(
                    fd, [memory], places.randrange(n_places) * mmap.PAGESIZE
                )
        except OSError as error:
            errors.append(error)

    threads = [threading.Thread(target=read, args=(i,)) for i in range(n_threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took = time.perf_counter() - begin
    os.close(fd)
    if errors:
        raise Failed(f"{path}: direct reads: {errors[0].strerror}")
    return sum(counts) / took


if __name__ == "__main__":
    lock(int(sys.argv[1]))
