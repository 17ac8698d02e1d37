"""Runs sessions in bubblewrap: no network but the gateway, no host files but the work folder."""

from __future__ import annotations

import asyncio
import os
import platform
import random
import re
import shutil
import socket
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from polar.errors import RuntimeFailed, SetupError
from polar.runtimes.base import Place, SandboxSpec
from polar.runtimes.forwarding import forward
from polar.runtimes.launching import Command, Launched, boot, launched
from polar.runtimes.mounts import HOME, LAUNCHER, PYTHON, WORK, Mounts
from polar.runtimes.sandbox import Identity, LaunchedSandbox, resource_limits
from polar.runtimes.settings import BubblewrapSettings
from polar.runtimes.warm import WarmParents

__all__ = ["BubblewrapRuntime"]

GATEWAY_PORT = 9190
"""The same in every sandbox: each has a network of its own."""

_READY_S = 30.0
_PROBE_S = 20.0
_LARGEST_SCRATCH_MB = 1024
_UID_INSIDE = 1000
_UIDS = range(61184, 65520)
"""Set aside for short-lived services; a sandbox started by root takes one of them."""
_KERNEL_COUNTS_BY_NAMESPACE = (5, 14)
_ENV = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": HOME,
    "TMPDIR": "/tmp",
    "LANG": "C.UTF-8",
    "USER": "agent",
    "LOGNAME": "agent",
}
_NAMESPACES = (
    *("--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"),
    *("--hostname", "sandbox", "--die-with-parent", "--as-pid-1"),
)
_USER_NAMESPACE = (*("--unshare-user", "--uid", str(_UID_INSIDE), "--gid", str(_UID_INSIDE)),)
_ROOT = (*("--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID", "--cap-add", "CAP_SETPCAP"),)


@dataclass(frozen=True, slots=True)
class _Ability:
    """What bubblewrap can do on this machine."""

    executable: str
    becomes_other_user: bool
    """Started by a root with all rights: the agent gets a user id that owns nothing else."""
    mounts: Mounts


class BubblewrapRuntime:
    """Runs each session in fresh namespaces, with no capability and nothing shared but its work.

    Started by an ordinary user, processes inside have that user's id in a user namespace of their
    own. Started by root, they get an unused user id, to which the work folder is given: root's
    own id would own the host's files, and the kernel does not count its processes.

    Args:
        settings: How it behaves.
    """

    def __init__(self, settings: BubblewrapSettings | None = None) -> None:
        self._settings = settings or BubblewrapSettings()
        self._warm = WarmParents() if self._settings.preload else None
        self._ability: _Ability | None = None
        self._probing = asyncio.Lock()
        self._uids_in_use: set[int] = set()

    def probe(self) -> None:
        """Try to make a sandbox.

        Raises:
            SetupError: Bubblewrap is missing, or this machine does not let it work.
        """
        self._ability = _probe(self._settings)

    @asynccontextmanager
    async def start(self, spec: SandboxSpec) -> AsyncIterator[LaunchedSandbox]:
        """Start a sandbox; leaving the context kills every process in it.

        Raises:
            RuntimeFailed: It cannot be started.
            SetupError: Bubblewrap is missing, or this machine does not let it work.
        """
        ability = await self._probed()
        with self._user(ability) as uid:
            if uid is not None:
                await asyncio.to_thread(_give, spec.work_dir, uid)
            async with (
                self._launch(ability, spec, uid) as init,
                _gateway(init, spec.gateway_url),
            ):
                yield LaunchedSandbox(
                    _place(spec),
                    init.channel,
                    init_pid=init.greeting.pid,
                    identity=Identity(
                        _ENV,
                        resource_limits(spec.limits, count_processes=_counts_processes(ability)),
                        uid=uid,
                        confined=True,
                    ),
                    warm=self._warm,
                )

    def protections(self) -> Mapping[str, bool]:
        """Say what is protected. Memory and CPU are limited for each process, not their sum."""
        if self._ability is None:
            self.probe()
        return {
            "network": True,
            "root_read_only": True,
            "processes": self._ability is not None and _counts_processes(self._ability),
            "memory": True,
            "cpu": True,
        }

    async def aclose(self) -> None:
        """End the warm parents."""
        if self._warm is not None:
            await self._warm.aclose()

    async def _probed(self) -> _Ability:
        async with self._probing:
            if self._ability is None:
                self._ability = await asyncio.to_thread(_probe, self._settings)
            return self._ability

    @contextmanager
    def _user(self, ability: _Ability) -> Iterator[int | None]:
        if not ability.becomes_other_user:
            yield None
            return
        uid = random.choice([uid for uid in _UIDS if uid not in self._uids_in_use])
        self._uids_in_use.add(uid)
        try:
            yield uid
        finally:
            self._uids_in_use.remove(uid)

    @asynccontextmanager
    async def _launch(
        self, ability: _Ability, spec: SandboxSpec, uid: int | None
    ) -> AsyncIterator[Launched]:
        with _account_files(uid or _UID_INSIDE) as (passwd_fd, group_fd):
            command = Command(
                role="init",
                python=(str(PYTHON), "-I", "-S", *boot(LAUNCHER)),
                env={},
                cwd=Path("/"),
                wrapper=(
                    *_wrapper(ability),
                    *ability.mounts.arguments(
                        work=(
                            "--ro-bind" if spec.work_read_only else "--bind",
                            str(spec.work_dir.absolute()),
                        ),
                        read_only=spec.read_only,
                        passwd_fd=passwd_fd,
                        group_fd=group_fd,
                        scratch_mb=min(spec.limits.memory_mb, _LARGEST_SCRATCH_MB),
                    ),
                    "--",
                ),
                fds=(passwd_fd, group_fd),
            )
            listen = None if spec.gateway_url is None else GATEWAY_PORT
            setup = {"home": HOME, "listen": listen, "uid": uid, "confine": True}
            async with launched(command, setup, ready_s=_READY_S) as init:
                yield init


@asynccontextmanager
async def _gateway(init: Launched, gateway_url: str | None) -> AsyncIterator[None]:
    if gateway_url is None:
        yield
        return
    if len(init.greeting.fds) != 1:
        raise RuntimeFailed("the sandbox opened no socket for the gateway")
    listener = socket.socket(fileno=init.greeting.fds[0])
    listener.setblocking(False)
    async with forward(listener, gateway_url):
        yield


def _place(spec: SandboxSpec) -> Place:
    url = None if spec.gateway_url is None else f"http://127.0.0.1:{GATEWAY_PORT}"
    return Place(WORK, HOME, url)


def _give(folder: Path, uid: int) -> None:
    """Give a folder with everything in it to a user, following no link."""
    os.chown(folder, uid, uid)
    for _, folders, files, parent in os.fwalk(folder):
        for name in (*folders, *files):
            os.chown(name, uid, uid, dir_fd=parent, follow_symlinks=False)


@contextmanager
def _account_files(uid: int) -> Iterator[tuple[int, int]]:
    """Open the inside's passwd and group files: without an entry, Node and ssh refuse to work."""
    contents = (
        f"root:x:0:0:root:/:/usr/sbin/nologin\nagent:x:{uid}:{uid}::{HOME}:/bin/sh\n",
        f"root:x:0:\nagent:x:{uid}:\n",
    )
    with ExitStack() as stack:
        fds = []
        for content in contents:
            file = stack.enter_context(tempfile.TemporaryFile(buffering=0))
            file.write(content.encode())
            file.seek(0)
            fds.append(file.fileno())
        yield fds[0], fds[1]


def _wrapper(ability: _Ability) -> tuple[str, ...]:
    privileges = _ROOT if ability.becomes_other_user else _USER_NAMESPACE
    return (ability.executable, *_NAMESPACES, *privileges)


def _counts_processes(ability: _Ability) -> bool:
    """Whether a limit on the number of processes counts this sandbox's and no others."""
    if ability.becomes_other_user:
        return True
    found = re.match(r"(\d+)\.(\d+)", platform.release())
    kernel = (int(found[1]), int(found[2])) if found else (0, 0)
    return kernel >= _KERNEL_COUNTS_BY_NAMESPACE


def _is_host_root() -> bool:
    """Whether this root is root outside of every user namespace, too."""
    inside, outside, _ = Path("/proc/self/uid_map").read_text(encoding="ascii").split()[:3]
    return inside == outside == "0"


def _probe(settings: BubblewrapSettings) -> _Ability:
    executable = str(settings.executable) if settings.executable else shutil.which("bwrap")
    if executable is None:
        raise SetupError(
            "bubblewrap is not installed", fix="Install it (`apt install bubblewrap`)."
        )
    try:
        usage = subprocess.run(
            [executable, "--help"], capture_output=True, text=True, timeout=_PROBE_S, check=False
        ).stdout
    except OSError as error:
        raise SetupError(
            f"bubblewrap does not start: {error.strerror}", where=executable
        ) from error
    mounts = Mounts(settings.visible, sized="--size" in usage)
    problem = ""
    for becomes_other_user in _ways():
        ability = _Ability(executable, becomes_other_user, mounts)
        problem = _try(ability)
        if not problem:
            return ability
    raise SetupError(
        f"bubblewrap cannot make a sandbox on this machine: {problem}",
        where=executable,
        fix="Allow user namespaces, or use the `local` runtime.",
    )


def _ways() -> tuple[bool, ...]:
    """List the ways to try, by whether the agent gets another user id than ours."""
    if os.geteuid() != 0:
        return (False,)
    return (True,) if _is_host_root() else (True, False)


def _try(ability: _Ability) -> str:
    """Make a sandbox and leave it; return what went wrong, or nothing."""
    uid = _UIDS.start
    program = f"import os; os.setgid({uid}); os.setuid({uid})" if ability.becomes_other_user else ""
    with tempfile.TemporaryDirectory() as work, _account_files(uid) as (passwd_fd, group_fd):
        arguments = ability.mounts.arguments(
            work=("--bind", work),
            read_only=(),
            passwd_fd=passwd_fd,
            group_fd=group_fd,
            scratch_mb=1,
        )
        ended = subprocess.run(
            [*_wrapper(ability), *arguments, "--", str(PYTHON), "-I", "-S", "-c", program],
            env={},
            pass_fds=(passwd_fd, group_fd),
            capture_output=True,
            text=True,
            timeout=_PROBE_S,
            check=False,
        )
    return "" if ended.returncode == 0 else ended.stderr.strip() or f"exit code {ended.returncode}"
