"""A scripted model server that harnesses really call, and one session of a harness against it."""

import asyncio
import fcntl
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from polar.errors import HarnessMissing
from polar.harnesses.base import Harness, LaunchRequest
from polar.runtimes.base import ExecResult, Runtime, SandboxSpec
from polar.types import Limits

CACHE = Path(os.environ.get("POLAR_CACHE", "~/.cache/polar")).expanduser()
SECONDS = 120.0


def install(harness: Harness) -> None:
    """Install a harness as its preset says, unless it is there already.

    Tests run in several processes: one installs, and the others wait for it.
    """
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f"{harness.name}.test-lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _install(harness)


def _install(harness: Harness) -> None:
    try:
        if harness.find().executable.is_relative_to(CACHE):
            return
    except HarnessMissing:
        pass
    for command in harness.install_command():
        assert shutil.which(command[0]), f"{command[0]} is needed to install {harness.name}"
        subprocess.run(command, check=True, capture_output=True, timeout=600)


@dataclass
class Request:
    """One model request as it came."""

    path: str
    headers: Mapping[str, str]
    body: Mapping[str, Any]


Script = Callable[[Request, int], Mapping[str, Any] | int]
"""From a request and the number of assistant turns in it to a message, or an HTTP status."""


@dataclass
class ScriptedModel:
    """Answers Chat Completions, streamed or not, as a script says."""

    script: Script
    requests: list[Request] = field(default_factory=list)

    async def __aenter__(self) -> "ScriptedModel":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _serve(self, reader, writer) -> None:
        try:
            while True:
                request = await _read(reader)
                self.requests.append(request)
                turns = sum(m["role"] == "assistant" for m in request.body["messages"])
                writer.write(_answer(request, self.script(request, turns)))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


async def _read(reader) -> Request:
    first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().strip().split("\r\n")
    headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
    body = json.loads(await reader.readexactly(int(headers["content-length"])))
    return Request(first.split()[1], headers, body)


def _answer(request: Request, message: Mapping[str, Any] | int) -> bytes:
    if isinstance(message, int):
        body, kind, status = b'{"error": {"message": "scripted"}}', "application/json", message
    else:
        finish = "tool_calls" if message.get("tool_calls") else "stop"
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        whole = {"id": "x", "created": 1, "model": "m", "usage": usage}
        status = 200
        if request.body.get("stream"):
            kind = "text/event-stream"
            chunk = {"index": 0, "delta": message, "finish_reason": finish}
            event = {**whole, "object": "chat.completion.chunk", "choices": [chunk]}
            body = f"data: {json.dumps(event)}\n\ndata: [DONE]\n\n".encode()
        else:
            kind = "application/json"
            choice = {"index": 0, "message": message, "finish_reason": finish}
            body = json.dumps({**whole, "object": "chat.completion", "choices": [choice]}).encode()
    head = f"HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


def text(command: str) -> dict[str, Any]:
    """A reply that runs a command, written as a block."""
    return {"role": "assistant", "content": f"I run this.\n\n```bash\n{command}\n```"}


def tool(command: str, number: int = 0) -> dict[str, Any]:
    """A reply that runs a command by calling the `bash` tool."""
    function = {"name": "bash", "arguments": json.dumps({"command": command})}
    call = {"index": 0, "id": f"call_{number}", "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


async def session(
    harness: Harness,
    runtime: Runtime,
    work: Path,
    url: str,
    *,
    key: str = "the-key",
    preload: bool = True,
) -> ExecResult:
    """Run one session to its end."""
    await asyncio.to_thread(work.mkdir)
    found = await asyncio.to_thread(harness.find)
    spec = SandboxSpec(work, Limits(), found.read_only, url)
    async with runtime.start(spec) as sandbox:
        request = LaunchRequest("Write hello into hello.txt.", "a-model", key, sandbox.place)
        launch = harness.launch(request)
        await sandbox.put_files(launch.files)
        process = launch.process if preload else replace(launch.process, preload=None)
        return await sandbox.run(process, timeout_s=SECONDS)
