"""What every runtime promises, and what only a sandboxing one does."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from polar.errors import RuntimeFailed
from polar.harnesses.installing import python_folders
from polar.runtimes import load
from polar.runtimes.base import Preload, ProcessSpec, Runtime, SandboxSpec
from polar.types import Limits

RUNTIMES = {name: load(name) for name in ("local", "bubblewrap")}
SECONDS = 30.0

HARNESS = """
import os, sys

STARTED_IN = os.getpid()
SEEN_AT_IMPORT = os.environ.get("STATIC")

def main():
    exec(sys.argv[1], {"__name__": "agent", **globals()})
"""


@pytest.fixture(params=RUNTIMES)
async def runtime(request):
    runtime = RUNTIMES[request.param]()
    yield runtime
    await runtime.aclose()


@pytest.fixture
async def bubblewrap():
    runtime = RUNTIMES["bubblewrap"]()
    yield runtime
    await runtime.aclose()


@pytest.fixture
def work(tmp_path):
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


@dataclass(frozen=True)
class InstalledHarness:
    """A program that can be preloaded, and what a sandbox must show for it to run."""

    python: Path
    folders: tuple[Path, ...]

    def __call__(self, *modules: str) -> Preload:
        return Preload(
            self.python,
            ("agent_program", *modules),
            "agent_program:main",
            {"STATIC": "from the start"},
        )


@pytest.fixture(scope="session")
def harness(tmp_path_factory) -> "InstalledHarness":
    """A Python program in a virtual environment of its own, whose entry runs its argument."""
    environment = tmp_path_factory.mktemp("harness") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    python = environment / "bin" / "python"
    library = next(environment.glob("lib/python*/site-packages"))
    (library / "agent_program.py").write_text(HARNESS)
    (library / "agent_with_thread.py").write_text(
        "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    )

    return InstalledHarness(python, python_folders(python))


def shell(line: str, **more) -> ProcessSpec:
    return ProcessSpec(("sh", "-c", line), **more)


def python(code: str, preload: Preload, **more) -> ProcessSpec:
    return ProcessSpec((str(preload.python), textwrap.dedent(code)), preload=preload, **more)


@asynccontextmanager
async def started(runtime: Runtime, work: Path, **spec):
    spec.setdefault("limits", Limits())
    async with runtime.start(SandboxSpec(work, **spec)) as sandbox:
        yield sandbox


async def run(runtime, work, process, *, timeout_s=SECONDS, **spec):
    async with started(runtime, work, **spec) as sandbox:
        return await sandbox.run(process, timeout_s=timeout_s)


@dataclass
class Witness:
    """A pipe that a process inside holds open: its end is the end of that process."""

    path: Path

    def __post_init__(self) -> None:
        os.mkfifo(self.path)
        self._fd = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK)

    async def read(self) -> bytes:
        loop = asyncio.get_running_loop()
        ready = asyncio.Event()
        loop.add_reader(self._fd, ready.set)
        try:
            async with asyncio.timeout(SECONDS):
                await ready.wait()
        finally:
            loop.remove_reader(self._fd)
        return os.read(self._fd, 100)

    def close(self) -> None:
        os.close(self._fd)


@pytest.fixture
def witness(work):
    witness = Witness(work / "witness")
    yield witness
    witness.close()


LINGER = "setsid sh -c 'exec 3>witness; echo here >&3; sleep 1000' & setsid sleep 1000 & wait"


# ---- any runtime


async def test_a_process_says_what_it_did(runtime, work):
    result = await run(runtime, work, shell("echo out; echo err >&2; exit 3"))

    assert (result.exit_code, result.stdout, result.stderr) == (3, "out\n", "err\n")
    assert not result.timed_out


async def test_work_is_done_in_the_work_folder(runtime, work):
    (work / "given.txt").write_text("given")

    async with started(runtime, work) as sandbox:
        result = await sandbox.run(shell("pwd; cat given.txt; echo made > made.txt"), timeout_s=9)
        assert result.stdout == f"{sandbox.place.work_dir}\ngiven"

    assert (work / "made.txt").read_text() == "made\n"


async def test_a_command_that_does_not_exist_exits_with_127(runtime, work):
    result = await run(runtime, work, ProcessSpec(("no-such-command", "x")))

    assert result.exit_code == 127
    assert "no-such-command" in result.stderr


async def test_a_file_that_is_no_program_exits_with_126(runtime, work):
    (work / "plain.txt").write_text("words")

    assert (await run(runtime, work, ProcessSpec(("./plain.txt",)))).exit_code == 126


async def test_a_killed_process_exits_with_128_and_the_signal(runtime, work):
    result = await run(runtime, work, shell("kill -TERM $$"))

    assert result.exit_code == 128 + signal.SIGTERM


async def test_standard_input_is_given_whole(runtime, work):
    text = "line\n" * 50_000

    result = await run(runtime, work, shell("wc -c", stdin=text))

    assert int(result.stdout) == len(text)


async def test_without_input_a_process_reads_nothing(runtime, work):
    assert (await run(runtime, work, shell("cat; echo end"))).stdout == "end\n"


async def test_only_the_last_64_kib_of_endless_output_are_kept(runtime, work):
    result = await run(runtime, work, shell("yes before | head -c 9000000; echo; echo last"))

    assert len(result.stdout) == 64 * 1024
    assert result.stdout.endswith("\nlast\n")


async def test_output_that_is_no_utf_8_is_replaced(runtime, work):
    assert (await run(runtime, work, shell(r"printf 'a\377b'"))).stdout == "a�b"


async def test_the_environment_of_polar_does_not_leak(runtime, work, monkeypatch):
    monkeypatch.setenv("SECRET_OF_POLAR", "value")

    result = await run(runtime, work, shell("env", env={"GIVEN": "yes"}))

    assert "GIVEN=yes" in result.stdout
    assert "SECRET_OF_POLAR" not in result.stdout


async def test_each_sandbox_has_a_home_and_a_temporary_folder_of_its_own(runtime, work):
    line = 'ls -A "$HOME" "$TMPDIR"; touch "$HOME/left" "$TMPDIR/left"'

    first = await run(runtime, work, shell(line))
    second = await run(runtime, work, shell(line))

    assert "left" not in first.stdout + second.stdout
    assert (first.exit_code, second.exit_code) == (0, 0)


async def test_config_files_lie_in_the_home(runtime, work):
    async with started(runtime, work) as sandbox:
        await sandbox.put_files({"a/b/config.json": "{ä}", "top": "x"})
        result = await sandbox.run(shell("cat ~/a/b/config.json ~/top"), timeout_s=SECONDS)

        assert result.stdout == "{ä}x"
        assert sandbox.place.home
    assert list(work.iterdir()) == []


@pytest.mark.parametrize("name", ["../out", "/etc/out", "a/../../out"])
async def test_config_files_outside_of_the_home_are_refused(runtime, work, name):
    async with started(runtime, work) as sandbox:
        with pytest.raises(RuntimeFailed):
            await sandbox.put_files({name: "x"})


async def test_a_process_beyond_its_time_is_killed_with_its_children(runtime, work, witness):
    async with started(runtime, work) as sandbox:
        running = asyncio.create_task(sandbox.run(shell(LINGER), timeout_s=1.0))
        assert await witness.read() == b"here\n"
        result = await running

        assert result.timed_out
        assert result.exit_code == 128 + signal.SIGKILL
        assert await witness.read() == b""


async def test_a_cancelled_process_is_killed_with_its_children(runtime, work, witness):
    async with started(runtime, work) as sandbox:
        running = asyncio.create_task(sandbox.run(shell(LINGER), timeout_s=SECONDS))
        assert await witness.read() == b"here\n"
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running

        assert await witness.read() == b""
        assert (await sandbox.run(shell("echo again"), timeout_s=SECONDS)).stdout == "again\n"


async def test_nothing_outlives_the_process_that_started_it(runtime, work, witness):
    line = LINGER.replace("& wait", "&") + " read line < witness_started"
    os.mkfifo(work / "witness_started")

    async with started(runtime, work) as sandbox:
        running = asyncio.create_task(sandbox.run(shell(line), timeout_s=SECONDS))
        assert await witness.read() == b"here\n"
        await asyncio.to_thread((work / "witness_started").write_text, "go\n")
        result = await running

        assert not result.timed_out
        assert await witness.read() == b""


async def test_leaving_the_sandbox_kills_what_runs_in_it(runtime, work, witness):
    async with started(runtime, work) as sandbox:
        running = asyncio.create_task(sandbox.run(shell(LINGER), timeout_s=SECONDS))
        assert await witness.read() == b"here\n"

    with pytest.raises(RuntimeFailed):
        await running
    assert await witness.read() == b""


async def test_processor_time_is_limited(runtime, work):
    result = await run(runtime, work, shell("while :; do :; done"), limits=Limits(cpu_s=1))

    assert result.exit_code in {128 + signal.SIGXCPU, 128 + signal.SIGKILL}
    assert not result.timed_out


async def test_memory_is_limited(runtime, work):
    greedy = shell("head -c 300000000 /dev/zero | tail -c 290000000 | wc -c")

    result = await run(runtime, work, greedy, limits=Limits(memory_mb=100))

    assert result.stdout.strip() == "0"


async def test_the_gateway_is_reached_at_its_place(runtime, work):
    async with (
        gateway(answer(b"the gateway")) as url,
        started(runtime, work, gateway_url=url) as sandbox,
    ):
        result = await sandbox.run(fetch(sandbox.place.gateway_url), timeout_s=SECONDS)

    assert result.stdout == "the gateway"


async def test_an_answer_that_the_gateway_cuts_is_cut_inside(runtime, work):
    async with gateway(cut) as url, started(runtime, work, gateway_url=url) as sandbox:
        result = await sandbox.run(fetch(sandbox.place.gateway_url), timeout_s=SECONDS)

    assert "ConnectionResetError" in result.stderr


async def test_many_sandboxes_run_side_by_side(runtime, tmp_path):
    async def one(number: int) -> str:
        work = tmp_path / str(number)
        work.mkdir()
        result = await run(runtime, work, shell(f"echo {number} > n; cat n"))
        return result.stdout.strip()

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(number)) for number in range(8)]

    assert [task.result() for task in tasks] == [str(number) for number in range(8)]


async def test_protections_are_said_by_name(runtime):
    protections = await asyncio.to_thread(runtime.protections)

    assert set(protections) == {"network", "root_read_only", "processes", "memory", "cpu"}


# ---- programs that are forked from a warm parent


async def test_a_preloaded_program_is_forked_with_its_own_everything(runtime, work, harness):
    code = """
        print(os.getcwd(), sys.argv[0], sorted(os.environ)[0], os.environ["GIVEN"])
        print(SEEN_AT_IMPORT, STARTED_IN != os.getpid(), os.environ.get("STATIC"))
        print(sys.stdin.read(), file=sys.stderr)
        open("made.txt", "w").write("made")
        sys.exit(7)
    """
    process = python(code, harness(), env={"GIVEN": "value", "A": "first"}, stdin="typed")
    folders = harness.folders

    async with started(runtime, work, read_only=folders) as sandbox:
        result = await sandbox.run(process, timeout_s=SECONDS)

        assert result.stdout.splitlines() == [
            f"{sandbox.place.work_dir} {process.argv[0]} A value",
            "from the start True None",
        ]
    assert result.stderr == "typed\n"
    assert result.exit_code == 7
    assert (work / "made.txt").read_text() == "made"


async def test_a_preloaded_program_that_raises_exits_with_1(runtime, work, harness):
    process = python("raise ValueError('broken')", harness())

    result = await run(runtime, work, process, read_only=harness.folders)

    assert result.exit_code == 1
    assert "ValueError: broken" in result.stderr


async def test_a_preloaded_program_leaves_as_an_interpreter_does(runtime, work, harness):
    code = """
        import atexit, threading
        atexit.register(print, "last")
        threading.Timer(0.05, print, ["thread"]).start()
        sys.stdout.write("first ")
    """

    result = await run(runtime, work, python(code, harness()), read_only=harness.folders)

    assert result.stdout == "first thread\nlast\n"


@pytest.mark.parametrize(
    "code",
    [
        f"os.execvp('sh', ['sh', '-c', {LINGER!r}])",
        f"import subprocess; subprocess.run(['sh', '-c', {LINGER!r}])",
    ],
    ids=["itself", "below"],
)
async def test_a_preloaded_program_is_killed_with_its_children(
    runtime, work, harness, witness, code
):
    async with started(runtime, work, read_only=harness.folders) as sandbox:
        running = asyncio.create_task(sandbox.run(python(code, harness()), timeout_s=SECONDS))
        assert await witness.read() == b"here\n"
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running

        assert await witness.read() == b""


async def test_limits_hold_for_a_preloaded_program(runtime, work, harness):
    code = "import resource; print(resource.getrlimit(resource.RLIMIT_CPU)[1])"

    result = await run(
        runtime,
        work,
        python(code, harness()),
        limits=Limits(cpu_s=77),
        read_only=harness.folders,
    )

    assert result.stdout == "77\n"


async def test_a_program_whose_import_starts_a_thread_is_started_the_plain_way(
    runtime, work, harness, caplog
):
    preload = harness("agent_with_thread")
    process = ProcessSpec((str(preload.python), "-c", "print('plain')"), preload=preload)
    folders = harness.folders

    results = [await run(runtime, work, process, read_only=folders) for _ in range(2)]

    assert [result.stdout for result in results] == ["plain\n", "plain\n"]
    assert caplog.text.count("thread") == 1


async def test_a_program_without_its_entry_point_is_started_the_plain_way(
    runtime, work, harness, caplog
):
    preload = Preload(harness().python, (), "agent_program:missing")
    process = ProcessSpec((str(preload.python), "-c", "print('plain')"), preload=preload)
    folders = harness.folders

    results = [await run(runtime, work, process, read_only=folders) for _ in range(2)]

    assert [result.stdout for result in results] == ["plain\n", "plain\n"]
    assert caplog.text.count("missing") == 1 + 1  # the name of the entry, and the reason


# ---- a runtime that isolates


async def test_processes_have_no_privileges(bubblewrap, work, harness):
    code = "print(open('/proc/self/status').read())"
    folders = harness.folders
    for process in (shell("cat /proc/self/status"), python(code, harness())):
        result = await run(bubblewrap, work, process, read_only=folders)

        status = dict(line.split(":\t", 1) for line in result.stdout.splitlines() if ":\t" in line)
        for kind in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
            assert int(status[kind], 16) == 0, (process, kind)
        assert status["NoNewPrivs"] == "1"
        assert status["Uid"].split()[0] != "0"


async def test_files_of_the_host_are_not_there(bubblewrap, work, tmp_path, harness):
    (tmp_path / "secret.txt").write_text("secret")
    seen = [tmp_path / "secret.txt", Path.home(), Path("/root/.ssh"), Path("/var/log")]
    looks = f"import os; print([os.path.exists(p) for p in {[str(p) for p in seen]!r}])"
    folders = harness.folders
    expected = [p for p in seen if any(f.is_relative_to(p) for f in folders)]

    plain = ProcessSpec((str(harness().python), "-c", looks))
    for process in (plain, python(looks, harness())):
        result = await run(bubblewrap, work, process, read_only=folders)

        assert result.stdout.strip() == str([path in expected for path in seen]), result.stderr


async def test_what_only_root_may_read_is_empty(bubblewrap, work):
    result = await run(bubblewrap, work, shell("cat /etc/shadow; ls -A /etc/ssl/private"))

    assert result.stdout == ""


async def test_the_root_is_read_only(bubblewrap, work):
    attempts = (
        "touch /x; touch /usr/x; touch /etc/x; touch /dev/x; mkdir /root/x; touch /var/x;"
        "echo x > /proc/sys/kernel/core_pattern; echo x > /etc/passwd"
    )

    result = await run(bubblewrap, work, shell(attempts))

    assert len(result.stderr.splitlines()) == 8


async def test_the_work_folder_can_be_read_only(bubblewrap, work):
    (work / "given.txt").write_text("given")

    result = await run(
        bubblewrap, work, shell("cat given.txt; touch x; rm given.txt"), work_read_only=True
    )

    assert result.stdout == "given"
    assert [path.name for path in work.iterdir()] == ["given.txt"]


async def test_nothing_but_the_gateway_can_be_reached(bubblewrap, work, harness):
    async with gateway(answer(b"gateway")) as url, gateway(answer(b"other")) as other:
        port = int(other.rpartition(":")[2])
        code = f"""
            import socket
            for address in (("127.0.0.1", {port}), ("192.0.2.1", 80)):
                try:
                    socket.create_connection(address, timeout=5)
                    print("reached")
                except OSError as error:
                    print(type(error).__name__, error.errno)
            print(sorted(name for _, name in socket.if_nameindex()))
        """
        folders = harness.folders
        result = await run(
            bubblewrap, work, python(code, harness()), gateway_url=url, read_only=folders
        )

    assert "reached" not in result.stdout
    assert result.stdout.splitlines()[-1] == "['lo']"


async def test_without_a_gateway_nothing_listens_inside(bubblewrap, work):
    async with started(bubblewrap, work) as sandbox:
        result = await sandbox.run(shell("cat /proc/net/tcp | wc -l"), timeout_s=SECONDS)

        assert sandbox.place.gateway_url is None
    assert result.stdout.strip() == "1"


async def test_processes_of_the_host_are_not_seen(bubblewrap, work, harness):
    code = "print(len([name for name in os.listdir('/proc') if name.isdigit()]), os.getpid())"
    folders = harness.folders

    plain = await run(bubblewrap, work, shell("ls /proc | grep -c '^[0-9]'"))
    forked = await run(bubblewrap, work, python(code, harness()), read_only=folders)

    assert int(plain.stdout) <= 5
    processes, own_id = map(int, forked.stdout.split())
    assert processes <= 3
    assert own_id < 20


async def test_places_are_the_same_in_every_sandbox(bubblewrap, tmp_path):
    places = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        async with started(bubblewrap, tmp_path / name, gateway_url="http://127.0.0.1:1") as box:
            names = await box.run(shell("pwd; hostname; id -un; echo $HOME"), timeout_s=SECONDS)
            places.append((box.place, names.stdout))

    assert places[0] == places[1]
    assert places[0][1] == "/workspace\nsandbox\nagent\n/home/agent\n"


async def test_the_number_of_processes_is_limited(bubblewrap, work):
    limited = (await asyncio.to_thread(bubblewrap.protections))["processes"]
    line = "i=0; while [ $i -lt 40 ]; do sleep 100 & i=$((i+1)); done; echo all"

    result = await run(bubblewrap, work, shell(line), limits=Limits(processes=20))

    assert ("all" in result.stdout) is not limited


async def test_a_forked_program_cannot_be_looked_into_by_its_children(bubblewrap, work, harness):
    code = """
        import subprocess
        look = "readlink /proc/$PPID/exe; cat /proc/$PPID/environ; ls /proc/$PPID/fd; echo done"
        print(subprocess.run(["sh", "-c", look], capture_output=True, text=True).stdout)
    """

    result = await run(bubblewrap, work, python(code, harness()), read_only=harness.folders)

    assert result.stdout.split() == ["done"]


async def test_the_first_process_cannot_be_looked_into(bubblewrap, work):
    result = await run(bubblewrap, work, shell("ls /proc/1/fd; cat /proc/1/environ; echo done"))

    assert result.stdout == "done\n"


# ---- a gateway to reach

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], object]


def answer(body: bytes) -> Handler:
    async def handle(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
        await writer.drain()
        writer.close()

    return handle


async def cut(reader, writer):
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\nbegin")
    await writer.drain()
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    writer.transport.abort()


def gateway(handle: Handler) -> AbstractAsyncContextManager[str]:
    @asynccontextmanager
    async def serve() -> AsyncIterator[str]:
        server = await asyncio.start_server(handle, "127.0.0.1", 0)
        try:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        finally:
            server.close()

    return serve()


def fetch(url: str) -> ProcessSpec:
    """Read an answer to its end with the interpreter that every sandbox shows."""
    from polar.runtimes.mounts import PYTHON

    host, _, port = url.removeprefix("http://").partition(":")
    code = f"""
import socket
s = socket.create_connection(({host!r}, {port}))
s.sendall(b"GET / HTTP/1.1\\r\\n\\r\\n")
data = b""
while more := s.recv(9999):
    data += more
print(data.partition(b"\\r\\n\\r\\n")[2].decode(), end="")
"""
    return ProcessSpec((str(PYTHON), "-I", "-S", "-c", code))
