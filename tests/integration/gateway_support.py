"""A byte-level model family and a scriptable engine, small enough to hold in the head."""

import asyncio
import math
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import openai

from polar.engines.base import Capabilities, Chunk, SampleRequest
from polar.gateway import Gateway, GatewaySettings, SessionPolicy
from polar.rendering.hermes import call_opening
from polar.rendering.parsing import HermesParser
from polar.store import SqliteJournal
from polar.types import Message, Session, SessionId, TaskId, ToolSpec

START, END = 256, 257


class ByteRenderer:
    """ChatML over bytes: one token a byte, two special tokens."""

    stop_token_ids = (END,)
    fingerprint = "bytes"

    def render(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[int]:
        ids = [*"".join(tool.name for tool in tools).encode()]
        for message in messages:
            ids += self._turn(message)
        return [*ids, START, *b"assistant\n"]

    def bridge(self, previous_ids, new_messages, tools, *, prompt_tokens=0):
        closing = [] if previous_ids[-1] == END else [END]
        delta = [token for message in new_messages for token in self._turn(message)]
        return [*closing, *b"\n", *delta, START, *b"assistant\n"]

    def parser(
        self, tools, *, new_tool_call_id: Callable[[], str], calls_flow: bool = False
    ) -> HermesParser:
        return HermesParser(
            decode=self.decode,
            stop_token_ids=(END,),
            new_tool_call_id=new_tool_call_id,
            thinks=True,
            calls_flow=calls_flow,
        )

    def call_opening(self, name: str | None) -> list[int]:
        return [*f"<think>\n\n</think>\n\n{call_opening(name)}".encode()]

    def decode(self, token_ids: Sequence[int]) -> str:
        names = {START: b"<|im_start|>", END: b"<|im_end|>"}
        parts = (names.get(token) or bytes([token]) for token in token_ids)
        return b"".join(parts).decode("utf-8", errors="replace")

    def _turn(self, message: Message) -> list[int]:
        calls = "".join(f"[{call.name} {call.arguments}]" for call in message.tool_calls)
        text = f"{message.role}\n{message.content}{calls}"
        return [START, *text.encode(), END, *b"\n"]


@dataclass
class Hold:
    """A place in a script at which the engine waits until it is let go."""

    reached: asyncio.Event = field(default_factory=asyncio.Event)
    released: asyncio.Event = field(default_factory=asyncio.Event)
    left: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the engine goes on, or is cancelled there."""


Script = Sequence[str | Hold | Exception]


class ByteEngine:
    """Samples what it is told: scripts in order, then an echo of the prompt's length."""

    def __init__(self, *scripts: Script | str, max_context: int = 100_000) -> None:
        self.scripts = deque([s] if isinstance(s, str) else s for s in scripts)
        self.max_context = max_context
        self.requests: list[SampleRequest] = []
        self.cancelled: list[str] = []
        self.version = 7

    async def sample(self, request: SampleRequest) -> AsyncIterator[Chunk]:
        self.requests.append(request)
        script = self.scripts.popleft() if self.scripts else [str(len(request.prompt_ids))]
        left = request.sampling.max_tokens
        try:
            for part in script:
                if isinstance(part, Exception):
                    raise part
                if isinstance(part, Hold):
                    part.reached.set()
                    try:
                        await part.released.wait()
                    finally:
                        part.left.set()
                    continue
                for byte in part.encode():
                    if left == 1:
                        yield self._chunk(byte, "length")
                        return
                    yield self._chunk(byte)
                    left -= 1
                    await asyncio.sleep(0)  # as a real one: what is there is sent meanwhile
            yield self._chunk(END, "stop")
        except (asyncio.CancelledError, GeneratorExit):
            self.cancelled.append(request.id)
            raise

    async def probe(self) -> Capabilities:
        return Capabilities("bytes", self.max_context, True, True, True)

    async def pause(self) -> None: ...

    async def resume(self) -> None: ...

    async def load_weights(self, version: int, path: Path | None) -> None:
        self.version = version

    async def aclose(self) -> None: ...

    def _chunk(self, token: int, finish_reason=None) -> Chunk:
        return Chunk((token,), (-math.log(2 + token),), self.version, finish_reason)


@dataclass
class Setup:
    """A gateway that serves, with all that it stands on."""

    gateway: Gateway
    engine: ByteEngine
    journal: SqliteJournal
    url: str
    _made: int = 0

    async def open(self, policy: SessionPolicy | None = None) -> Session:
        self._made += 1
        session = Session(
            SessionId(f"s{self._made}"), TaskId("task"), "group", 0, f"key-{self._made}-secret"
        )
        await self.journal.open_session(session, phase="train", step=0)
        await self.gateway.open(session, policy or SessionPolicy())
        return session

    def base(self, session: Session) -> str:
        return f"{self.url}/s/{session.key}/v1"

    def client(self, session: Session) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(
            base_url=self.base(session),
            api_key=session.key,
            max_retries=0,
            http_client=self.http(),
        )

    def http(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=self.url, timeout=30, trust_env=False, verify=False)


@asynccontextmanager
async def serving(
    tmp_path: Path,
    *scripts: Script | str,
    settings: GatewaySettings | None = None,
    max_context: int = 100_000,
) -> AsyncIterator[Setup]:
    """Serve scripted replies, with a journal in a temporary folder."""
    engine = ByteEngine(*scripts, max_context=max_context)
    async with SqliteJournal.open(tmp_path / "journal.db") as journal:
        gateway = Gateway(engine, ByteRenderer(), journal, settings)
        async with gateway.serve() as address:
            yield Setup(gateway, engine, journal, address.url)


def ask(*contents: str, **fields) -> dict:
    """Make the body of a request; user and assistant messages alternate."""
    roles = ("user", "assistant")
    messages = [
        {"role": roles[number % 2], "content": text} for number, text in enumerate(contents)
    ]
    return {"model": "m", "messages": messages, **fields}
