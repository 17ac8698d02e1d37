"""Starts what is measured: the bare engine, Polar's gateway and the peers, each in a process."""

import json
import os
import socket
import sqlite3
import subprocess
import sys
import threading
import time
import uuid
from abc import ABC, abstractmethod
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from urllib.request import Request, urlopen

from gateway_parts import peers
from gateway_parts.engine import MODEL

HERE = Path(__file__).parent
_START_S = 120.0
_CHAT = "/v1/chat/completions"


@dataclass(frozen=True)
class Entrance:
    """Where one session's calls go."""

    path: str
    headers: tuple[tuple[str, str], ...] = ()
    key: str = ""
    url: str | None = None
    """Where this session is served, if not where the server is."""


class Process:
    """A child whose output is kept in a file, for when it does not start."""

    def __init__(self, command: list, folder: Path, *, piped: bool = False, **environment: str):
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._log = (folder / "output.txt").open("wb")
        self._asking = threading.Lock()
        pipe = subprocess.PIPE if piped else subprocess.DEVNULL
        self.child = subprocess.Popen(
            [str(word) for word in command],
            cwd=folder,
            stdin=pipe,
            stdout=subprocess.PIPE if piped else self._log,
            stderr=self._log,
            env={**os.environ, **environment},
            text=True,
        )

    def ask(self, line: dict | None = None):
        """Send a line and read the answer; without one, read what the child says first."""
        with self._asking:
            if line is not None:
                self.child.stdin.write(json.dumps(line) + "\n")
                self.child.stdin.flush()
            said = self.child.stdout.readline()
        if not said:
            raise RuntimeError(f"it ended: {(self.folder / 'output.txt').read_text()[-3000:]}")
        return json.loads(said)

    def rss_mb(self) -> float:
        status = Path(f"/proc/{self.child.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0]) / 1024

    def cpu_s(self) -> float:
        """Seconds of CPU that it and what it started have used."""
        return sum(map(_cpu_s, _family(self.child.pid)))

    def stop(self) -> None:
        if self.child.stdin:
            self.child.stdin.close()
        self.child.terminate()
        try:
            self.child.wait(20)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait()
        self._log.close()


class Server(ABC):
    """Something that harnesses could call in place of the model."""

    name: str
    captures: str = "tokens"
    whole_only: bool = False
    """Whether it can only give whole answers, and keeps no sessions."""
    process: Process
    url: str

    @abstractmethod
    def enter(self, count: int) -> list[Entrance]:
        """Open sessions."""

    def leave(self, entrances: list[Entrance]) -> None:
        """Close sessions, as the end of a rollout does."""
        del entrances  # most have nothing to close

    def stored_bytes(self) -> int | None:
        """Size of what was put on disk, if anything is."""
        return None

    def stop(self) -> None:
        self.process.stop()


class Engine(Server):
    """The engine itself, without a gateway."""

    name, captures = "direct", "nothing"

    def __init__(self, folder: Path, replies: list) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "replies.json"
        path.write_text(json.dumps(replies))
        command = [sys.executable, HERE / "engine.py", path]
        self.process = Process(command, folder, piped=True)
        self.url = self.process.ask()["url"]

    def enter(self, count: int) -> list[Entrance]:
        return [Entrance(_CHAT)] * count

    def set_pace(self, token_ms: float) -> None:
        _post(f"{self.url}/pace?token_ms={token_ms}")


class Relay(Server):
    """What is left of a gateway that does nothing: see `relay.py`."""

    name, captures, whole_only = "relay", "nothing", True

    def __init__(self, folder: Path, engine_url: str, prompt_tokens: int) -> None:
        command = [sys.executable, HERE / "relay.py", engine_url, prompt_tokens]
        self.process = Process(command, folder, piped=True, PYTHONPATH=str(HERE.parent))
        self.url = self.process.ask()["url"]

    def enter(self, count: int) -> list[Entrance]:
        return [Entrance(_CHAT)] * count


class Polar(Server):
    """Polar's gateway, in one process or in several: `polar`, `polar-2`."""

    def __init__(self, folder: Path, engine_url: str, model: str, workers: int = 0) -> None:
        self.name = f"polar-{workers}" if workers else "polar"
        script = [HERE / "polar_server.py", model, engine_url, folder, "--workers", workers]
        self.process = Process([sys.executable, *script], folder, piped=True)
        self.url = self.process.ask()["url"]

    def enter(self, count: int) -> list[Entrance]:
        opened = self.process.ask({"open": count})
        return [Entrance(f"/s/{key}{_CHAT}", key=key, url=url) for key, url in opened]

    def leave(self, entrances: list[Entrance]) -> None:
        self.process.ask({"close": [entrance.key for entrance in entrances]})

    def stored_bytes(self) -> int:
        return _size_of(self.process.folder / "journal.db")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@dataclass
class _Peer(Server):
    """A peer in its own environment, on a free port."""

    folder: Path
    engine_url: str
    python: Path
    port: int = field(default_factory=_free_port)

    def __post_init__(self) -> None:
        self.url = f"http://127.0.0.1:{self.port}"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.process = Process(self._command(), self.folder, HF_HUB_OFFLINE="1")
        self._wait_ready()

    @abstractmethod
    def _command(self) -> list: ...

    def _wait_ready(self) -> None:
        until = time.monotonic() + _START_S
        while time.monotonic() < until and self.process.child.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
            except OSError:
                time.sleep(0.2)
            else:
                return
        said = (self.folder / "output.txt").read_text()[-3000:]
        raise RuntimeError(f"{self.name} did not start: {said}")


class Rllm(_Peer):
    name = "rllm"

    def _command(self) -> list:
        place = ["--host", "127.0.0.1", "--port", self.port, "--db-path", self.folder / "traces.db"]
        worker = ["--worker", f"{self.engine_url}/v1", "--log-level", "warning"]
        return [self.python, "-m", "rllm_model_gateway", *place, "--store", "sqlite", *worker]

    def enter(self, count: int) -> list[Entrance]:
        return [Entrance(f"/sessions/{uuid.uuid4().hex}{_CHAT}") for _ in range(count)]

    def stored_bytes(self) -> int:
        return _size_of(self.folder / "traces.db")


class OpenEnv(_Peer):
    name = "openenv"

    def _command(self) -> list:
        module = "openenv.core.harness.capture.server"
        place = ["--host", "127.0.0.1", "--port", self.port, "--capture-level", "tokens"]
        return [self.python, "-m", module, "--llm-url", self.engine_url, "--model", MODEL, *place]

    def enter(self, count: int) -> list[Entrance]:
        ids = [_post(f"{self.url}/sessions", {})["session_id"] for _ in range(count)]
        return [Entrance(_CHAT, (("Authorization", f"Bearer {each}"),), each) for each in ids]

    def leave(self, entrances: list[Entrance]) -> None:
        for entrance in entrances:
            _post(f"{self.url}/sessions/{entrance.key}", method="DELETE")


class Litellm(_Peer):
    name, captures = "litellm", "nothing"

    def _command(self) -> list:
        parameters = {"model": f"openai/{MODEL}", "api_base": f"{self.engine_url}/v1"}
        entry = {"model_name": MODEL, "litellm_params": {**parameters, "api_key": "none"}}
        config = self.folder / "config.yaml"
        config.write_text(json.dumps({"model_list": [entry]}))  # JSON is YAML
        place = ["--host", "127.0.0.1", "--port", self.port, "--telemetry", "False"]
        program = self.python.parent / "litellm"
        return [self.python, program, "--config", config, "--num_workers", "1", *place]

    def enter(self, count: int) -> list[Entrance]:
        return [Entrance(_CHAT)] * count


KINDS = {kind.name: kind for kind in (Rllm, OpenEnv, Litellm)}


def start_peers(
    names: list[str], *, engine_url: str, folder: Path, installed: Path
) -> tuple[list[Server], dict[str, str]]:
    """Start the peers that there are; say of the others why not."""
    started, absent = [], {}
    for name in names:
        reason = peers.missing(installed, name)
        if reason is None:
            try:
                python = peers.python_of(installed, name).absolute()
                started.append(KINDS[name](folder / name, engine_url, python))
            except RuntimeError as error:
                reason = str(error)
        if reason is not None:
            absent[name] = reason
    return started, absent


def _family(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(each for child in children for each in _family(int(child)))]


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _post(url: str, body: dict | None = None, method: str = "POST") -> dict:
    headers = {"Content-Type": "application/json"}
    request = Request(url, json.dumps(body or {}).encode(), headers, method=method)
    with urlopen(request, timeout=30) as answer:
        return json.load(answer)


def _size_of(database: Path) -> int:
    """Size of a database after its log was written back."""
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return database.stat().st_size
