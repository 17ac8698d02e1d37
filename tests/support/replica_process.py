"""Servers of `vllm_replica.py` in processes of their own, to be killed."""

import asyncio
import signal
import socket
import sys
from contextlib import asynccontextmanager
from pathlib import Path

SCRIPT = Path(__file__).with_name("vllm_replica.py")


class ReplicaProcess:
    """A server that can be killed, frozen and started anew at the same address."""

    def __init__(self, chunk_s: float) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._chunk_s = chunk_s
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Start it, on base weights, and wait until it listens."""
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-S", str(SCRIPT), str(self.port), str(self._chunk_s))
        )
        async with asyncio.timeout(30):
            while not await self._listens():  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.02)

    async def kill(self) -> None:
        """End it at once, wherever it is."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
        await self._process.wait()

    def freeze(self) -> None:
        """Stop it where it is; its connections stay open."""
        self._process.send_signal(signal.SIGSTOP)

    async def _listens(self) -> bool:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", self.port)
        except OSError:
            return False
        writer.close()
        return True


@asynccontextmanager
async def replicas(count: int, *, chunk_s: float = 0.0):
    """Run some servers."""
    servers = [ReplicaProcess(chunk_s) for _ in range(count)]
    try:
        for server in servers:
            await server.start()
        yield servers
    finally:
        for server in servers:
            await server.kill()


def weights(folder: Path, version: int) -> Path:
    """Write weights of which the server's logprobs tell the version."""
    folder.mkdir(exist_ok=True)
    (folder / "model.safetensors").write_text(str(version))
    return folder
