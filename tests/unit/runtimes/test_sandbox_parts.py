"""The host's parts of a sandbox: streams, folders, forwarding."""

import asyncio
import os
import socket
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import uvloop

from polar.runtimes.forwarding import forward
from polar.runtimes.mounts import HOME, WORK, Mounts
from polar.runtimes.output import TAIL_BYTES, PipeEnd, TailReader, open_streams
from polar.runtimes.sandbox import resource_limits
from polar.runtimes.scratch import remove_stale, scratch_folder
from polar.types import Limits


async def test_a_tail_is_kept_across_pieces():
    reader = TailReader()
    for number in range(100):
        reader.data_received(b"%04d" % number * 1000)
    reader.connection_lost(None)

    text = await reader.text()

    assert len(text) == TAIL_BYTES
    assert text.endswith("0099")


async def test_streams_end_when_their_writers_are_gone():
    async with open_streams("typed") as streams:
        stdin, stdout, stderr = streams.fds
        assert os.read(stdin, 100) == b"typed"
        os.write(stdout, b"out")
        os.write(stderr, b"err")
        streams.release()

        assert (await streams.out.text(), await streams.err.text()) == ("out", "err")


def test_a_pipe_that_the_loop_has_closed_is_not_closed_again_as_another_file(tmp_path):
    read, write = os.pipe()
    end = PipeEnd(read)
    os.close(read)
    file = os.open(tmp_path / "journal", os.O_CREAT | os.O_WRONLY)
    if file != read:
        os.dup2(file, read)
        os.close(file)
    end.close()
    os.write(read, b"still open")
    os.close(read)
    os.close(write)
    assert (tmp_path / "journal").read_bytes() == b"still open"


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_every_pipe_is_closed_once_whichever_loop_has_it(run):
    async def use():
        async with open_streams(None) as streams:
            streams.release()
            await streams.out.text()
            await streams.err.text()
        await asyncio.sleep(0.01)

    run(use())  # a loop's first run opens what it keeps
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        run(use())
    assert len(os.listdir("/proc/self/fd")) == before


async def test_a_scratch_folder_is_removed_whatever_its_permissions():
    async with scratch_folder() as folder:
        (folder / "a" / "b").mkdir(parents=True)
        (folder / "a" / "b" / "file").write_text("x")
        (folder / "link").symlink_to("/nowhere")
        (folder / "a" / "b").chmod(0)
        (folder / "a").chmod(0)

    assert not folder.exists()


USES_A_FOLDER = """
import asyncio, os, signal, sys
from polar.runtimes.scratch import scratch_folder

async def main():
    async with scratch_folder() as folder:
        (folder / "home").mkdir()
        if sys.argv[1] == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        print(folder, flush=True)
        sys.stdin.read()

asyncio.run(main())
"""


async def test_folders_of_killed_processes_are_removed_and_those_in_use_are_not(tmp_path):
    async def started(how):
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", USES_A_FOLDER, how),
            env={**os.environ, "TMPDIR": str(tmp_path)},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )

    await (await started("killed")).communicate()
    (leaked,) = tmp_path.glob("polar-*")
    living = await started("living")
    used = Path((await living.stdout.readline()).decode().strip())
    assert await asyncio.to_thread(remove_stale, tmp_path) == 1
    assert (used / "home").exists()
    assert not leaked.exists()
    await living.communicate(b"")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "inside", "old", "removed"),
    [
        ("polar-abc", "home", True, 1),
        ("polar-abc", "home", False, 0),  # being made
        ("polar-abc", "my thesis", True, 0),
        ("polarbear", "home", True, 0),
    ],
)
def test_a_folder_without_a_lock_is_removed_only_if_polar_left_it_long_ago(
    tmp_path, name, inside, old, removed
):
    (tmp_path / name / inside).mkdir(parents=True)
    if old:
        os.utime(tmp_path / name, (0, 0))
    (tmp_path / "polar-file").touch()
    (tmp_path / "polar-link").symlink_to(tmp_path / name)
    assert remove_stale(tmp_path) == removed
    assert (tmp_path / name).exists() is not bool(removed)


def test_memory_is_limited_as_data_for_some_programs_reserve_address_space():
    limits = resource_limits(Limits(cpu_s=5, memory_mb=7, processes=9), count_processes=True)

    assert limits["DATA"] == 7 * 2**20
    assert "AS" not in limits
    assert (limits["CPU"], limits["NPROC"], limits["CORE"]) == (5, 9, 0)


def test_processes_are_not_limited_where_others_would_be_counted():
    assert resource_limits(Limits(), count_processes=False)["NPROC"] is None


@pytest.mark.parametrize("sized", [True, False])
def test_a_folder_is_shown_with_parents_that_can_be_entered(tmp_path, sized):
    shown = tmp_path / "deep" / "harness"

    arguments = Mounts((), sized=sized).arguments(
        work=("--bind", "/host/work"),
        read_only=(shown, shown),
        passwd_fd=10,
        group_fd=11,
        scratch_mb=5,
    )

    text = " ".join(arguments)
    assert text.count(f"--ro-bind {shown} {shown}") == 1
    assert f"--perms 0755 --dir {shown.parent} " in text
    assert text.endswith(f"--bind /host/work {WORK} --remount-ro / --chdir {WORK}")
    assert ("--size 5242880 --tmpfs /home" in text) is sized
    assert HOME.startswith("/home/")


def test_a_folder_below_a_system_folder_is_not_shown_twice():
    arguments = Mounts((), sized=True).arguments(
        work=("--bind", "/w"), read_only=(), passwd_fd=3, group_fd=4, scratch_mb=1
    )

    assert arguments.count("/usr") == 2


def _listener() -> socket.socket:
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    return listener


@asynccontextmanager
async def _forwarded(handle):
    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    listener = _listener()
    address = listener.getsockname()
    try:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with forward(listener, url):
            yield address
    finally:
        server.close()


async def test_bytes_are_carried_both_ways_to_the_end():
    async def shout(reader, writer):
        writer.write((await reader.read()).upper())
        writer.close()

    async with _forwarded(shout) as address:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"word " * 100_000)
        writer.write_eof()

        assert await reader.read() == b"WORD " * 100_000
        writer.close()


async def test_a_connection_to_a_gateway_that_is_not_there_is_reset():
    closed = _listener()
    url = f"http://127.0.0.1:{closed.getsockname()[1]}"
    closed.close()
    listener = _listener()
    address = listener.getsockname()

    async with forward(listener, url):
        reader, writer = await asyncio.open_connection(*address)
        with pytest.raises(ConnectionResetError):
            await reader.read()
        writer.close()


async def test_connections_are_reset_when_the_sandbox_ends():
    accepted = asyncio.Event()

    async def wait(reader, writer):
        accepted.set()
        await reader.read()
        writer.close()

    async with _forwarded(wait) as address:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"x")
        await accepted.wait()

    with pytest.raises(ConnectionResetError):
        await reader.read()
    writer.close()


async def test_a_client_that_leaves_is_noticed_by_the_gateway():
    left = asyncio.Event()

    async def wait(reader, writer):
        await reader.read()
        left.set()
        writer.close()

    async with _forwarded(wait) as address:
        _, writer = await asyncio.open_connection(*address)
        writer.write(b"x")
        await writer.drain()
        writer.close()
        async with asyncio.timeout(10):
            await left.wait()
