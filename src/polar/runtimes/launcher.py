"""Start, limit, reap and kill the processes of one sandbox: the program next to the harness.

Run by path (`python -I launcher.py ROLE FD`), standard library only, because it runs inside the
sandbox and, in the warm role, in the harness's own interpreter. `FD` is a Unix socket to Polar.

Roles:
    init: The sandbox's first process. In a process namespace it is process 1; without one it is
        the subreaper, to which every orphan of the sandbox falls. It starts commands one after
        the other; when one ends, everything it left behind is killed.
    warm: A process outside every sandbox that has imported a harness's modules. On request it
        forks a child that enters a sandbox, gives up every privilege and calls the entry point.

Messages are a 4-byte length and JSON, with file descriptors attached to the length. Losing the
socket means that Polar is gone: everything is killed.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import resource
import select
import signal
import socket
import struct
import sys
import time
from typing import Any

Message = dict[str, Any]

_LENGTH = struct.Struct("!I")
_MOST_FDS = 8
_HIGHEST_FD = 4096
_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_CAPBSET_DROP = 24
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_PR_CAP_AMBIENT = 47
_PR_CAP_AMBIENT_CLEAR_ALL = 4
_CAPABILITY_VERSION_3 = 0x20080522
_CLONE_NEWNS = 0x00020000
_CLONE_NEWUTS = 0x04000000
_CLONE_NEWIPC = 0x08000000
_CLONE_NEWUSER = 0x10000000
_CLONE_NEWPID = 0x20000000
_CLONE_NEWNET = 0x40000000
_NAMESPACES = _CLONE_NEWNS | _CLONE_NEWUTS | _CLONE_NEWIPC | _CLONE_NEWPID | _CLONE_NEWNET

_libc = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    """Serve the role given on the command line until Polar hangs up."""
    name, fd = sys.argv[1], int(sys.argv[2])
    channel = Channel(socket.socket(fileno=fd))
    first = channel.receive()
    if first is None:
        return
    serve(channel, Init(channel, first[0]) if name == "init" else Warm(channel, first[0]))


class Channel:
    """Messages with file descriptors over a stream socket; blocking."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        sock.setblocking(True)

    def receive(self) -> tuple[Message, list[int]] | None:
        """Receive one message with its descriptors; nothing when the other side is gone."""
        try:
            head, fds, _, _ = socket.recv_fds(self.sock, _LENGTH.size, _MOST_FDS)
            head += self._exactly(_LENGTH.size - len(head)) if head else b""
            if not head:
                return None
            body = self._exactly(_LENGTH.unpack(head)[0])
        except (ConnectionError, EOFError):
            return None
        message: Message = json.loads(body)
        return message, list(fds)

    def send(self, message: Message, fds: tuple[int, ...] = ()) -> None:
        """Send one message with descriptors; a lost connection is noticed when receiving."""
        body = json.dumps(message).encode()
        try:
            socket.send_fds(self.sock, [_LENGTH.pack(len(body))], fds)
            self.sock.sendall(body)
        except ConnectionError:
            pass

    def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            more = self.sock.recv(size - len(data))
            if not more:
                raise EOFError
            data += more
        return bytes(data)


class Init:
    """The first process of a sandbox."""

    def __init__(self, channel: Channel, setup: Message) -> None:
        self._channel = channel
        self._running: dict[int, int] = {}  # process id -> request id
        if os.getpid() != 1:
            _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        if setup["confine"]:
            drop_privileges(setup["uid"])
        # The control socket must not be reachable through ptrace or pidfd_getfd from the agent's
        # processes, which have the same user id.
        _prctl(_PR_SET_DUMPABLE, 0)
        self._home: str = setup["home"]
        os.makedirs(self._home, mode=0o700, exist_ok=True)
        self._listen(setup["listen"])

    def _listen(self, port: int | None) -> None:
        if port is None:
            self._channel.send({"ready": True})
            return
        with socket.create_server(("127.0.0.1", port), backlog=64) as listener:
            self._channel.send({"ready": True}, (listener.fileno(),))

    def handle(self, message: Message, fds: list[int]) -> None:
        """Do what Polar asks for."""
        what, request = message["do"], message["id"]
        if what == "spawn":
            self._running[spawn(message, fds)] = request
            close_all(fds)
        elif what == "sweep":
            sweep(self)
            self._channel.send({"id": request, "exit": 0})
        elif what == "put":
            error = put(self._home, message["files"])
            self._channel.send({"id": request, "exit": 0, "error": error})

    def reaped(self, pid: int, code: int) -> None:
        """Kill what a finished command left behind, then report it."""
        request = self._running.pop(pid, None)
        if request is not None:
            sweep(self)
            self._channel.send({"id": request, "exit": code})

    def closed(self) -> None:
        """Kill everything: Polar is gone. (Leaving as process 1 does the same.)"""
        self._running.clear()
        sweep(self)


class Warm:
    """A process that has imported a harness and forks it into sandboxes."""

    def __init__(self, channel: Channel, setup: Message) -> None:
        self._channel = channel
        self._running: dict[int, int] = {}
        refused = self._import(setup["modules"])
        channel.send({"ready": refused is None, "refused": refused})

    def _import(self, modules: list[str]) -> str | None:
        for name in modules:
            try:
                importlib.import_module(name)
            except Exception as error:  # any failure of foreign code means: use the plain way
                return f"import of {name} failed: {error!r}"
        threads = len(os.listdir("/proc/self/task"))
        if threads != 1:
            return f"importing started {threads - 1} thread(s), which a fork would lose"
        sys.stdout.flush()
        sys.stderr.flush()
        gc.collect()
        gc.freeze()  # keeps the collector from touching, and so copying, shared pages
        return None

    def handle(self, message: Message, fds: list[int]) -> None:
        """Do what Polar asks for."""
        what, request = message["do"], message["id"]
        if what == "fork":
            self._running[fork_into(message, fds)] = request
            close_all(fds)
        elif what == "kill":
            for pid, running in self._running.items():
                if running == request:
                    os.kill(pid, signal.SIGTERM)

    def reaped(self, pid: int, code: int) -> None:
        """Report a finished child."""
        request = self._running.pop(pid, None)
        if request is not None:
            self._channel.send({"id": request, "exit": code})

    def closed(self) -> None:
        """Ask every child to die and wait for it."""
        for pid in self._running:
            os.kill(pid, signal.SIGTERM)
        for pid in self._running:
            os.waitpid(pid, 0)


def serve(channel: Channel, role: Init | Warm) -> None:
    """Handle messages and finished children until the channel closes."""
    woken, wake = os.pipe()
    os.set_blocking(woken, False)
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    reap(role)
    while True:
        ready, _, _ = select.select([channel.sock, woken], [], [])
        if woken in ready:
            os.read(woken, 4096)
            reap(role)
        if channel.sock in ready:
            received = channel.receive()
            if received is None:
                role.closed()
                return
            role.handle(*received)


def reap(role: Init | Warm) -> None:
    """Collect every child that has ended."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        role.reaped(pid, exit_code(status))


def sweep(role: Init | Warm) -> None:
    """Kill every other process of the sandbox and wait until none is left."""
    while kill_everyone():
        reap(role)
        time.sleep(0.0005)


def kill_everyone() -> bool:
    """Send SIGKILL to every process of the sandbox; false when there was none."""
    if os.getpid() == 1:
        try:
            os.kill(-1, signal.SIGKILL)
        except ProcessLookupError:
            return False
        return True
    victims = descendants(os.getpid())
    for pid in victims:
        kill(pid)
    return bool(victims)


def kill(pid: int) -> None:
    """Send SIGKILL to a process, unless it is gone."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def descendants(root: int) -> list[int]:
    """List the processes below `root`, whatever group or session they moved to."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as stat:
                    parent = int(stat.read().rpartition(")")[2].split()[1])
            except (FileNotFoundError, ProcessLookupError):
                continue
            children.setdefault(parent, []).append(int(name))
    found: list[int] = []
    open_ = [root]
    while open_:
        below = children.get(open_.pop(), [])
        found += below
        open_ += below
    return found


def spawn(message: Message, fds: list[int]) -> int:
    """Start a command with the three standard descriptors given; return its process id."""
    pid = os.fork()
    if pid:
        return pid
    code = 127
    try:
        take_stdio(fds)
        os.setsid()
        os.umask(0o022)
        for restored in (signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(restored, signal.SIG_DFL)
        os.chdir(message["cwd"])
        set_limits(message["limits"])
        os.execvpe(message["argv"][0], message["argv"], message["env"])  # noqa: S606
    except OSError as error:
        code = 126 if isinstance(error, PermissionError) else 127
        os.write(2, f"{message['argv'][0]}: {error.strerror}\n".encode())
    finally:
        os._exit(code)


def fork_into(message: Message, fds: list[int]) -> int:
    """Fork the harness into a sandbox; return the id of the process that waits for it.

    Only a child of a process that has entered a process namespace is inside of it, hence two
    forks. `fds` are stdin, stdout, stderr, a pipe for a set-up error and, if there are namespaces
    to enter, a pidfd of the sandbox's first process.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    waiter = os.fork()
    if waiter:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        return waiter
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    confined: bool = message["confine"]
    try:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if confined:
            enter(fds[4])
        else:
            _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        child = os.fork()
    except OSError as error:
        os.write(fds[3], str(error).encode())
        os._exit(1)
    if child == 0:
        become_harness(message, fds)
    os._exit(wait_for(child, confined=confined))


def wait_for(child: int, *, confined: bool) -> int:
    """Wait for the harness, killing it on SIGTERM; return its exit code."""
    os.closerange(0, _HIGHEST_FD)
    signal.signal(signal.SIGTERM, lambda *_: kill(child))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    _, status = os.waitpid(child, 0)
    if not confined:  # in a namespace the sandbox's first process sweeps
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while kill_everyone():
            while _reap_one():
                pass
            time.sleep(0.0005)
    return exit_code(status)


def _reap_one() -> bool:
    try:
        return os.waitpid(-1, os.WNOHANG)[0] != 0
    except ChildProcessError:
        return False


def enter(pidfd: int) -> None:
    """Enter all namespaces of a process; its user namespace only if it has another than ours.

    Raises:
        OSError: The kernel refuses.
    """
    own_user = os.stat("/proc/self/ns/user").st_ino
    with open(f"/proc/self/fdinfo/{pidfd}", encoding="ascii") as info:
        pid = next(line.split()[1] for line in info if line.startswith("Pid:"))
    same_user = os.stat(f"/proc/{pid}/ns/user").st_ino == own_user
    flags = _NAMESPACES if same_user else _NAMESPACES | _CLONE_NEWUSER
    if _libc.setns(pidfd, flags) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"setns: {os.strerror(number)}")


def become_harness(message: Message, fds: list[int]) -> None:
    """Turn this fork of the warm process into the harness process, and call its entry point."""
    try:
        os.setsid()
        os.umask(0o022)
        # Not inspectable: `/proc/PID/exe` of a forked child leads to the interpreter outside.
        if message["confine"]:
            drop_privileges(message["uid"])
        _prctl(_PR_SET_DUMPABLE, 0)
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        os.chdir(message["cwd"])
        set_limits(message["limits"])
        module, _, name = message["entry"].partition(":")
        entry = getattr(importlib.import_module(module), name)
    except Exception as error:  # reported as a failed set-up, whatever it was
        os.write(fds[3], repr(error).encode())
        os._exit(1)
    take_stdio(fds)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    os.environ.clear()
    os.environ.update(message["env"])
    time.tzset()
    if "tempfile" in sys.modules:
        sys.modules["tempfile"].tempdir = None  # type: ignore[attr-defined]
    sys.argv = message["argv"]
    sys.exit(entry())


def take_stdio(fds: list[int]) -> None:
    """Make the first three of `fds` the standard descriptors; close everything else."""
    for number, fd in enumerate(fds[:3]):
        os.dup2(fd, number)
    os.closerange(3, _HIGHEST_FD)


def drop_privileges(uid: int | None) -> None:
    """Give up every capability for good and become `uid`, where one is given."""
    for capability in range(64):
        _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)
    if uid is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    _libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    nothing = (ctypes.c_uint32 * 6)()
    if _libc.capset(header, nothing) != 0:
        raise OSError(ctypes.get_errno(), "capset")


def set_limits(limits: dict[str, int | None]) -> None:
    """Lower resource limits, by name: `{"CPU": 300}` is RLIMIT_CPU; absent values are skipped."""
    for name, value in limits.items():
        if value is None:
            continue
        kind = getattr(resource, f"RLIMIT_{name}")
        hard = resource.getrlimit(kind)[1]
        lowered = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (lowered, lowered))


def put(home: str, files: dict[str, str]) -> str | None:
    """Write files below the home folder; return what went wrong, if anything."""
    try:
        for name, content in files.items():
            path = os.path.join(home, name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w", encoding="utf-8") as file:
                file.write(content)
    except OSError as error:
        return str(error)
    return None


def exit_code(status: int) -> int:
    """Read a wait status as the shell does."""
    code = os.waitstatus_to_exitcode(status)
    return 128 - code if code < 0 else code


def close_all(fds: list[int]) -> None:
    """Close descriptors that a child has taken over."""
    for fd in fds:
        os.close(fd)


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option})")


if __name__ == "__main__":
    main()
