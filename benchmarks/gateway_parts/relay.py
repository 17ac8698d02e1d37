"""A gateway that only passes on: what is left of a call when a gateway does nothing with it.

It takes a chat completion and asks the engine's `/inference/v1/generate` with ids that are always
the same ones, over the clients' bare connections: it reads the JSON of both sides and writes its
own. It makes no tokens of the messages, puts nothing on record and streams nothing. No gateway in
Python that reads what the engine says takes much less.

    python relay.py ENGINE_URL PROMPT_TOKENS
"""

import asyncio
import gc
import json
import sys
import uuid

import httptools
import numpy as np
import orjson
import uvloop

from gateway_parts.engine import MODEL
from gateway_parts.load import Connection
from gateway_parts.servers import Entrance

_GENERATE = Entrance("/inference/v1/generate")


class Exchange(asyncio.Protocol):
    """One connection, one request at a time."""

    def __init__(self, url: str, idle: list[Connection], token_ids: np.ndarray) -> None:
        self._url, self._idle, self._token_ids = url, idle, token_ids
        self._parser = httptools.HttpRequestParser(self)
        self._body = b""

    def connection_made(self, transport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_body(self, part: bytes) -> None:
        self._body += part

    def on_message_complete(self) -> None:
        body, self._body = self._body, b""
        self._task = asyncio.create_task(self._answer(body))

    async def _answer(self, body: bytes) -> None:
        parameters = {"max_tokens": orjson.loads(body)["max_tokens"], "logprobs": 0}
        request = {"model": MODEL, "token_ids": self._token_ids, "sampling_params": parameters}
        asked = orjson.dumps({**request, "stream": True}, option=orjson.OPT_SERIALIZE_NUMPY)
        connection = self._idle.pop() if self._idle else await Connection.open(self._url)
        event = (await connection.post(_GENERATE, asked)).body.partition(b"\n")[0]
        self._idle.append(connection)
        said = orjson.loads(event.removeprefix(b"data: "))["choices"][0]["logprobs"]["content"]
        message = {"role": "assistant", "content": "".join(each["token"] for each in said)}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        answer = orjson.dumps({"id": uuid.uuid4().hex, "model": MODEL, "choices": [choice]})
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        self._transport.write(head % len(answer) + answer)


async def main(engine_url: str, prompt_tokens: int) -> None:
    idle: list[Connection] = []
    token_ids = np.arange(1000, 1000 + prompt_tokens, dtype=np.int32)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: Exchange(engine_url, idle, token_ids), "127.0.0.1", 0, backlog=1024
    )
    print(json.dumps({"url": f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"}), flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    gc.set_threshold(20_000, 10, 10)  # as Polar's
    uvloop.run(main(sys.argv[1], int(sys.argv[2])))
