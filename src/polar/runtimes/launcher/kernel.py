"""Namespaces, privileges and limits: what Python has no function for."""

from __future__ import annotations

import ctypes
import os
import resource

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
_PR_CAPBSET_DROP = 24
PR_SET_CHILD_SUBREAPER = 36
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


def drop_privileges(uid: int | None) -> None:
    """Give up every capability for good and become `uid`, where one is given."""
    for capability in range(64):
        _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)
    if uid is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    _libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    prctl(_PR_SET_NO_NEW_PRIVS, 1)
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


def prctl(option: int, value: int) -> None:
    """Set an attribute of this process.

    Raises:
        OSError: The kernel refuses.
    """
    if _libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option})")
