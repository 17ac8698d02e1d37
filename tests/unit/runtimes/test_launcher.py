"""The launcher's parts that need no sandbox."""

import os
import signal
import socket
import subprocess
import sys

import pytest

from polar.runtimes.launcher.kernel import enter, set_limits
from polar.runtimes.launcher.processes import call, descendants, exit_code
from polar.runtimes.launcher.roles import put
from polar.runtimes.launcher.wire import Channel


@pytest.fixture
def ends():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield Channel(ours), Channel(theirs)


def test_a_message_arrives_with_its_descriptors(ends):
    here, there = ends
    read, write = os.pipe()

    here.send({"do": "spawn", "text": "ä" * 10_000}, (write,))
    os.close(write)
    message, fds = there.receive()

    assert message == {"do": "spawn", "text": "ä" * 10_000}
    os.write(fds[0], b"through")
    os.close(fds[0])
    assert os.read(read, 100) == b"through"
    os.close(read)


def test_descriptors_belong_to_the_message_they_came_with(ends):
    here, there = ends
    read, write = os.pipe()

    here.send({"id": 1})
    here.send({"id": 2}, (read, write))
    for fd in (read, write):
        os.close(fd)

    assert there.receive() == ({"id": 1}, [])
    message, fds = there.receive()
    assert message == {"id": 2}
    assert len(fds) == 2
    for fd in fds:
        os.close(fd)


def test_a_closed_socket_is_the_end_of_messages(ends):
    here, there = ends
    here.sock.close()

    assert there.receive() is None


def test_a_message_that_breaks_off_is_the_end_of_messages(ends):
    here, there = ends
    here.sock.sendall(b"\0\0\0\x10half")
    here.sock.close()

    assert there.receive() is None


@pytest.mark.parametrize(
    ("status", "code"), [(0, 0), (3 << 8, 3), (signal.SIGKILL, 137), (signal.SIGTERM, 143)]
)
def test_exit_codes_are_the_shells(status, code):
    assert exit_code(status) == code


def _exits_with(value):
    def entry():
        raise SystemExit(value)

    return entry


@pytest.mark.parametrize(
    ("entry", "code"),
    [
        (lambda: None, 0),
        (lambda: 5, 5),
        (_exits_with(None), 0),
        (_exits_with(3), 3),
        (_exits_with("a reason"), 1),
        (_exits_with(256), 0),
    ],
)
def test_an_entry_points_end_is_read_as_the_interpreter_does(entry, code, capsys):
    assert call(entry) == code
    assert capsys.readouterr().err in {"", "a reason\n"}


def test_an_exception_of_an_entry_point_is_shown(capsys):
    def entry():
        raise ValueError("broken")

    assert call(entry) == 1
    assert "ValueError: broken" in capsys.readouterr().err


def test_descendants_are_found_in_other_sessions():
    line = "setsid sh -c 'echo $$; exec sleep 1000' & wait"
    with subprocess.Popen(["sh", "-c", line], stdout=subprocess.PIPE, text=True) as process:
        grandchild = int(process.stdout.readline())
        found = descendants(process.pid)
        for pid in found:
            os.kill(pid, signal.SIGKILL)

    assert grandchild in found
    assert os.getpid() not in found


def test_limits_are_only_lowered():
    code = (
        "import resource, sys; sys.path.insert(0, sys.argv[1])\n"
        "from launcher.kernel import set_limits\n"
        "set_limits({'NOFILE': 64, 'NPROC': None}); set_limits({'NOFILE': 10**6})\n"
        "print(resource.getrlimit(resource.RLIMIT_NOFILE))"
    )
    folder = os.path.dirname(os.path.dirname(sys.modules[set_limits.__module__].__file__))

    ended = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code, folder], capture_output=True, text=True, check=True
    )

    assert ended.stdout == "(64, 64)\n"


def test_entering_ones_own_namespaces_without_the_right_is_an_error():
    program = (
        "import os, sys; sys.path.insert(0, sys.argv[1])\n"
        "from launcher.kernel import drop_privileges, enter\n"
        "drop_privileges(None)\n"
        "try: enter(os.pidfd_open(os.getpid()))\n"
        "except OSError as error: print(error.strerror)"
    )
    folder = os.path.dirname(os.path.dirname(sys.modules[enter.__module__].__file__))

    ended = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program, folder],
        capture_output=True,
        text=True,
        check=True,
    )

    assert ended.stdout.startswith("setns: ")


def test_files_are_put_below_the_home(tmp_path):
    assert put(str(tmp_path), {"a/b.txt": "text", "c": ""}) is None

    assert (tmp_path / "a" / "b.txt").read_text() == "text"
    assert (tmp_path / "c").read_text() == ""


def test_a_file_that_cannot_be_put_is_reported(tmp_path):
    (tmp_path / "a").write_text("a file, not a folder")

    assert "a" in put(str(tmp_path), {"a/b.txt": "text"})
