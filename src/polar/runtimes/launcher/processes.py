"""Starting, forking, waiting for and killing processes."""

from __future__ import annotations

import atexit
import importlib
import os
import signal
import sys
import time

from .kernel import (
    PR_SET_CHILD_SUBREAPER,
    PR_SET_DUMPABLE,
    PR_SET_PDEATHSIG,
    drop_privileges,
    enter,
    prctl,
    set_limits,
)

TYPE_CHECKING = False  # as `typing` has it, whose import takes milliseconds of every start
if TYPE_CHECKING:
    from collections.abc import Callable

    from .wire import Message

KILL_PAUSE_S = 0.0005
"""Between two rounds of killing."""

_HIGHEST_FD = 4096


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
        os.execvpe(message["argv"][0], message["argv"], message["env"])
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
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if confined:
            enter(fds[4])
        else:
            prctl(PR_SET_CHILD_SUBREAPER, 1)
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
            time.sleep(KILL_PAUSE_S)
    return exit_code(status)


def _reap_one() -> bool:
    try:
        return os.waitpid(-1, os.WNOHANG)[0] != 0
    except ChildProcessError:
        return False


def become_harness(message: Message, fds: list[int]) -> None:
    """Turn this fork of the warm process into the harness process, and call its entry point."""
    try:
        os.setsid()
        os.umask(0o022)
        if message["confine"]:
            drop_privileges(message["uid"])
        # Not inspectable by the agent: `/proc/PID/exe` leads to the interpreter outside.
        prctl(PR_SET_DUMPABLE, 0)
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
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
    leave(call(entry))


def call(entry: Callable[[], object]) -> int:
    """Call an entry point as the interpreter does a main program; return the exit code."""
    try:
        result = entry()
    except SystemExit as leaving:
        result = leaving.code
    except BaseException:
        sys.excepthook(*sys.exc_info())
        return 1
    if result is None or isinstance(result, int):
        return int(result or 0) & 0xFF
    print(result, file=sys.stderr)
    return 1


def leave(code: int) -> None:
    """End this process as the interpreter does, but for taking thousands of modules apart.

    That would cost more than a session's own work. (`multiprocessing` leaves its forks the same
    way.)
    """
    if "threading" in sys.modules:
        sys.modules["threading"]._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            continue
    os._exit(code)


def take_stdio(fds: list[int]) -> None:
    """Make the first three of `fds` the standard descriptors; close everything else."""
    for number, fd in enumerate(fds[:3]):
        os.dup2(fd, number)
    os.closerange(3, _HIGHEST_FD)


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
                with open(f"/proc/{name}/stat", "rb") as stat:
                    parent = int(stat.read().rpartition(b")")[2].split()[1])
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


def exit_code(status: int) -> int:
    """Read a wait status as the shell does."""
    code = os.waitstatus_to_exitcode(status)
    return 128 - code if code < 0 else code


def close_all(fds: list[int]) -> None:
    """Close descriptors that a child has taken over."""
    for fd in fds:
        os.close(fd)
