"""A recording at the engine, independent of the gateway's: what was seen and what was sampled.

The file begins with `MAGIC`. Each record is its payload's length and CRC-32 (little-endian uint32),
then the payload: SHA-256 of the prompt ids as little-endian int32 (32 bytes), number of prompt
tokens and of sampled tokens (uint32), token ids (int32), logprobs (float32), weight versions
(int32), and `[session, attempt, call]` in JSON.

A process writes the payload `begin` before its first record and `end` when it closes the tape, with
all its calls in the journal. Without an `end` it was killed, and what it had just sampled may be in
no call. Version 1 has neither marks nor names.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import struct
import threading
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np
import orjson

from polar.engines.base import Capabilities, Chunk, Engine, SampleRequest, check_ids
from polar.errors import JournalError
from polar.types import FloatArray, IntArray

__all__ = ["TapeEntry", "TapedEngine", "read_tape"]

MAGIC = b"polar tape 2\n"
_READABLE = (MAGIC, b"polar tape 1\n")
_FRAME = struct.Struct("<II")
_HEAD = struct.Struct("<32sII")
_BEGIN, _END = b"begin", b"end"


@dataclass(frozen=True, slots=True)
class TapeEntry:
    """One request, as far as its consumer took it."""

    prompt_sha256: bytes
    """SHA-256 of the prompt ids as little-endian int32."""
    prompt_tokens: int
    token_ids: IntArray
    """int32 [sampled]"""
    logprobs: FloatArray
    """float32 [sampled]"""
    weight_versions: IntArray
    """int32 [sampled]"""
    session_id: str = ""
    """Empty: not told, on a tape of version 1."""
    attempt: int = 0
    call_id: str = ""
    closed: bool = True
    """Whether the process that wrote it closed the tape; otherwise it was killed, or still runs."""

    def encode(self) -> bytes:
        """Give the record's payload."""
        head = _HEAD.pack(self.prompt_sha256, self.prompt_tokens, len(self.token_ids))
        arrays = (
            self.token_ids.astype("<i4"),
            self.logprobs.astype("<f4"),
            self.weight_versions.astype("<i4"),
        )
        names = orjson.dumps((self.session_id, self.attempt, self.call_id))
        return head + b"".join(array.tobytes() for array in arrays) + names

    @classmethod
    def decode(cls, payload: bytes) -> TapeEntry:
        """Read a record's payload."""
        digest, prompt_tokens, count = _HEAD.unpack_from(payload)
        start = _HEAD.size
        names = payload[start + 12 * count :]
        session_id, attempt, call_id = orjson.loads(names) if names else ("", 0, "")
        return cls(
            prompt_sha256=digest,
            prompt_tokens=prompt_tokens,
            token_ids=np.frombuffer(payload, "<i4", count, start),
            logprobs=np.frombuffer(payload, "<f4", count, start + 4 * count),
            weight_versions=np.frombuffer(payload, "<i4", count, start + 8 * count),
            session_id=session_id,
            attempt=attempt,
            call_id=call_id,
        )


class TapedEngine:
    """An engine whose requests are written to a tape, cancelled and failed ones too.

    Args:
        engine: What samples.
        path: The tape; what it already holds stays, but for a torn last record.
    """

    def __init__(self, engine: Engine, path: Path) -> None:
        self._engine = engine
        self._tape = _Tape(path)

    async def sample(self, request: SampleRequest) -> AsyncIterator[Chunk]:
        """Stream what the engine samples; the record is on the tape when the stream has ended.

        Raises:
            JournalError: The tape cannot be written.
            EngineError: As the engine.
        """
        taken = _Taken()
        stream = cast(AsyncGenerator[Chunk], self._engine.sample(request))
        try:
            async with aclosing(stream):
                async for chunk in stream:
                    check_ids(chunk)
                    taken.add(chunk)
                    yield chunk
        finally:
            entry = taken.entry(request)
            await asyncio.shield(asyncio.to_thread(self._tape.append, entry))

    async def probe(self) -> Capabilities:
        """Probe the engine; its sample is not taped."""
        return await self._engine.probe()

    async def pause(self) -> None:
        """Pause the engine."""
        await self._engine.pause()

    async def resume(self) -> None:
        """Let the engine go on."""
        await self._engine.resume()

    async def load_weights(self, version: int, path: Path | None) -> None:
        """Give the engine new weights."""
        await self._engine.load_weights(version, path)

    async def aclose(self) -> None:
        """Close engine and tape."""
        try:
            await self._engine.aclose()
        finally:
            await asyncio.to_thread(self._tape.close)


def read_tape(path: Path) -> Iterator[TapeEntry]:
    """Read the records of a tape in the order in which they ended; a torn last one is left out.

    Raises:
        JournalError: The file is missing or no tape.
    """
    try:
        file = path.open("rb")
    except OSError as error:
        raise JournalError(f"the tape cannot be read: {error}", where=str(path)) from error
    with file:
        if file.read(len(MAGIC)) not in _READABLE:
            raise JournalError("the file is not a tape of this version", where=str(path))
        for entries, closed in _processes(_payloads(file)):
            yield from (replace(entry, closed=closed) for entry in entries)


def _processes(payloads: Iterator[bytes]) -> Iterator[tuple[list[TapeEntry], bool]]:
    """Part what each process wrote, and say whether it closed the tape."""
    entries: list[TapeEntry] = []
    marked = False
    for payload in payloads:
        if payload not in (_BEGIN, _END):
            entries.append(TapeEntry.decode(payload))
            continue
        yield entries, payload == _END or not marked
        entries, marked = [], True
    yield entries, not marked


@dataclass(slots=True)
class _Taken:
    """Tokens that a consumer has been given."""

    prompt_ids: tuple[int, ...] = ()
    """As the engine told them, where it made the prompt."""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    weight_versions: list[int] = field(default_factory=list)

    def add(self, chunk: Chunk) -> None:
        self.prompt_ids = chunk.prompt_ids or self.prompt_ids
        self.token_ids += chunk.token_ids
        self.logprobs += chunk.logprobs
        self.weight_versions += [chunk.weight_version] * len(chunk.token_ids)

    def entry(self, request: SampleRequest) -> TapeEntry:
        prompt = np.asarray(self.prompt_ids or request.prompt_ids, dtype="<i4")
        return TapeEntry(
            prompt_sha256=hashlib.sha256(prompt.tobytes()).digest(),
            prompt_tokens=len(prompt),
            token_ids=np.asarray(self.token_ids, dtype=np.int32),
            logprobs=np.asarray(self.logprobs, dtype=np.float32),
            weight_versions=np.asarray(self.weight_versions, dtype=np.int32),
            session_id=request.affinity,
            attempt=request.attempt,
            call_id=request.id,
        )


class _Tape:
    """The file, opened at the first record and appended to by one thread at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._descriptor: int | None = None
        self._begun = False

    def append(self, entry: TapeEntry) -> None:
        with self._lock:
            try:
                if self._descriptor is None:
                    self._descriptor = _open(self._path)
                if not self._begun:
                    self._write(self._descriptor, _BEGIN)
                    self._begun = True
                self._write(self._descriptor, entry.encode())
            except OSError as error:
                raise self._failed(str(error)) from error

    def close(self) -> None:
        with self._lock:
            if self._descriptor is None:
                return
            with suppress(JournalError, OSError):  # then it reads as if the process was killed
                self._write(self._descriptor, _END)
            os.close(self._descriptor)
            self._descriptor, self._begun = None, False

    def _write(self, descriptor: int, payload: bytes) -> None:
        record = _FRAME.pack(len(payload), zlib.crc32(payload)) + payload
        end = os.lseek(descriptor, 0, os.SEEK_END)
        written = os.write(descriptor, record)
        if written != len(record):  # a later record must not stand behind half a one
            os.ftruncate(descriptor, end)
            raise self._failed("the disk is full")

    def _failed(self, reason: str) -> JournalError:
        return JournalError(
            f"the tape cannot be written: {reason}",
            where=str(self._path),
            fix="Free some space or choose another run folder.",
        )


def _open(path: Path) -> int:
    """Open a tape for appending, behind its last whole record.

    Raises:
        JournalError: It is damaged before its end: cutting it there would lose whole records.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        with os.fdopen(os.dup(descriptor), "rb") as file:
            end = _end_of_records(file)
        if end is None:
            raise JournalError(
                "the tape is damaged before its end",
                where=str(path),
                fix="Restore it from a copy, or go on in a new run folder.",
            )
        os.ftruncate(descriptor, end)
        if not end:
            os.write(descriptor, MAGIC)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _end_of_records(file: BinaryIO) -> int | None:
    """Find where a tape's last whole record ends; nothing where it is no tape, or not to its end.

    A process that was killed leaves the beginning of a record, which reaches to the file's end.
    """
    begin = file.read(len(MAGIC))
    if begin not in _READABLE:
        return 0 if any(magic.startswith(begin) for magic in _READABLE) else None
    end = len(MAGIC) + sum(_FRAME.size + len(payload) for payload in _payloads(file))
    size = file.seek(0, os.SEEK_END)
    file.seek(end)
    frame = file.read(_FRAME.size)
    torn = len(frame) < _FRAME.size or end + _FRAME.size + _FRAME.unpack(frame)[0] >= size
    return end if torn else None


def _payloads(file: BinaryIO) -> Iterator[bytes]:
    """Read whole records up to the end or the first broken one."""
    while len(frame := file.read(_FRAME.size)) == _FRAME.size:
        size, checksum = _FRAME.unpack(frame)
        payload = file.read(size)
        if len(payload) != size or zlib.crc32(payload) != checksum:
            return
        yield payload
