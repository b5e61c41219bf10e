"""Servers that are started, watched, and always stopped."""
import atexit, ctypes, functools, os, pathlib, resource, signal, socket, subprocess, tempfile, time

import llama
from llama import ROOT, Failed, run, say
from sse import fetch

LIBC = ctypes.CDLL(None)
PR_SET_PDEATHSIG = 1
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
START_S_MAX, STOP_S_MAX = 120, 30
ALIVE = []


class Programs:
    """Both programs: those that were given (`given`, by name), or built in `work`."""

    @functools.cached_property
    def sluice(self):
        program = (self.given["sluice"] or ROOT / "target/release/sluice").resolve()
        if not program.exists():
            say("building sluice")
            run(["cargo", "build", "--release", "-p", "sluice-cli"], cwd=ROOT)
        return program

    @functools.cached_property
    def llama(self):
        return (self.given["llama"] or llama.build(self.work, ["llama-server", "llama-quantize"])).resolve()


class Server:
    """A server on a port of its own; `with` starts and stops it, as often as wanted."""

    def __init__(self, name, command, env=None):
        self.name, self.env = name, env
        self.command = [str(part) for part in command]
        self.process = self.port = self.log = None
        self.started_at = self.healthy_at = None

    def start(self):
        """Returns when /health answers 200."""
        self.port = free_port()
        command = [*self.command, "--host", "127.0.0.1", "--port", str(self.port)]
        self.log = tempfile.TemporaryFile()
        self.started_at = time.perf_counter()
        # A group of its own, so that Ctrl-C is for this program; and it ends where this program is killed.
        self.process = subprocess.Popen(command, env=self.env, stdin=subprocess.DEVNULL, stdout=self.log,
                                        stderr=subprocess.STDOUT, process_group=0,
                                        preexec_fn=lambda: LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL))
        ALIVE.append(self)
        while not self.is_healthy():
            if self.process.poll() is not None:
                raise Failed(f"{self.name} ended with {self.process.returncode}: {self.last_line()}")
            if time.perf_counter() > self.started_at + START_S_MAX:
                raise Failed(f"{self.name} is not healthy after {START_S_MAX} s: {self.last_line()}")
            time.sleep(0.005)
        self.healthy_at = time.perf_counter()

    def is_healthy(self):
        try:
            return fetch(self.port, "/health")[0] == 200
        except (OSError, Failed):
            return False

    def last_line(self):
        self.log.seek(0)
        lines = self.log.read().decode(errors="replace").strip().splitlines() or ["(no output)"]
        return lines[-1]

    def stop(self):
        """Asks it to end, and kills it where it does not."""
        if self in ALIVE:
            ALIVE.remove(self)
            self.process.terminate()
            try:
                self.process.wait(STOP_S_MAX)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
            self.log.close()

    def cpu_s(self):
        return cpu_s(self.process.pid)

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.stop()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@atexit.register
def stop_all():
    for server in list(ALIVE):
        server.stop()


class Watch:
    """The CPU time that idle servers and other processes use while a server is measured."""

    def __init__(self, servers, measured):
        self.servers, self.measured = servers, measured
        self.wall_s, self.others_pct, self.idle_s = 0, 0, {}

    def __enter__(self):
        self.before = self.now()
        return self

    def __exit__(self, kind, *_):
        if kind:
            return
        self.wall_s, machine, client, ended, servers = (
            {name: after[name] - before[name] for name in before} if isinstance(before, dict) else after - before
            for before, after in zip(self.before, self.now()))
        others = machine - client - ended - sum(servers.values())
        self.others_pct = max(0, round(100 * others / self.wall_s, 1))
        self.idle_s = {name: seconds for name, seconds in servers.items() if name != self.measured}

    def now(self):
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        return (time.perf_counter(), machine_cpu_s(), time.process_time(), ended.ru_utime + ended.ru_stime,
                {name: server.cpu_s() for name, server in self.servers.items()})


def wait_for_quiet(pct_max, until):
    """Waits while other processes use more than this share of a core, until a deadline."""
    while time.perf_counter() < until:
        with Watch({}, None) as watch:
            time.sleep(0.5)
        if watch.others_pct <= pct_max:
            break


def prefer(nice):
    """Gives this program and its servers a priority, also where Linux counts it by session."""
    group = pathlib.Path("/proc/self/autogroup")
    is_by_session = pathlib.Path("/proc/sys/kernel/sched_autogroup_enabled")
    try:
        os.setpriority(os.PRIO_PROCESS, 0, nice)
        if is_by_session.exists() and is_by_session.read_text().strip() == "1":
            before = group.read_text().split()[-1]
            group.write_text(str(nice))
            # The session is the shell's, too.
            atexit.register(group.write_text, before)
    except OSError as error:
        raise Failed(f"--nice {nice}: {error.strerror}") from None


def cpu_s(pid):
    """CPU seconds of a process and its threads."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def machine_cpu_s():
    """CPU seconds that were not idle, those that the hypervisor took included."""
    user, nice, system, _, _, irq, softirq, steal = map(
        int, pathlib.Path("/proc/stat").read_text().splitlines()[0].split()[1:9])
    return (user + nice + system + irq + softirq + steal) / TICKS_PER_S
