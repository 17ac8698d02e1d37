"""The two roles of a launcher, and the loop that serves them.

init: The sandbox's first process. In a process namespace it is process 1; without one it is the
    subreaper, to which every orphan of the sandbox falls. It starts commands one after the other;
    when one ends, everything that it left behind is killed.
warm: A process outside of every sandbox that has imported a harness's modules. On request it
    forks a child that enters a sandbox, gives up every privilege and calls the entry point.

Losing the socket means that Polar is gone: everything is killed.
"""

from __future__ import annotations

import gc
import importlib
import os
import select
import signal
import socket
import sys
import time

from .kernel import PR_SET_CHILD_SUBREAPER, PR_SET_DUMPABLE, drop_privileges, prctl
from .processes import KILL_PAUSE_S, close_all, exit_code, fork_into, kill_everyone, spawn
from .wire import Channel

TYPE_CHECKING = False  # as `typing` has it, whose import takes milliseconds of every start
if TYPE_CHECKING:
    from .wire import Message


def main() -> None:
    """Serve the role given on the command line until Polar hangs up."""
    name, fd = sys.argv[1], int(sys.argv[2])
    channel = Channel(socket.socket(fileno=fd))
    first = channel.receive()
    if first is None:
        return
    serve(channel, Init(channel, first[0]) if name == "init" else Warm(channel, first[0]))


def serve(channel: Channel, role: Init | Warm) -> None:
    """Handle messages and finished children until the channel closes."""
    woken, wake = os.pipe()
    os.set_blocking(woken, False)
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    reap(role)
    while True:
        ready, _, _ = select.select([channel.sock.fileno(), woken], [], [])
        if woken in ready:
            os.read(woken, 4096)
            reap(role)
        if channel.sock.fileno() in ready:
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


class Init:
    """The first process of a sandbox."""

    def __init__(self, channel: Channel, setup: Message) -> None:
        self._channel = channel
        self._running: dict[int, int] = {}  # process id -> request id
        if os.getpid() != 1:
            prctl(PR_SET_CHILD_SUBREAPER, 1)
        if setup["confine"]:
            drop_privileges(setup["uid"])
        # The control socket must not be reachable through ptrace or pidfd_getfd from the agent's
        # processes, which have the same user id.
        prctl(PR_SET_DUMPABLE, 0)
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
        """Kill everything: Polar is gone."""
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
            except ModuleNotFoundError:
                continue  # another version of the harness, which does not need it
            except Exception as error:  # any other failure of foreign code: use the plain way
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


def sweep(role: Init | Warm) -> None:
    """Kill every other process of the sandbox and wait until none is left."""
    while kill_everyone():
        reap(role)
        time.sleep(KILL_PAUSE_S)


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
