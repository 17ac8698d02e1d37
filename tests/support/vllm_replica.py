"""A server that speaks vLLM's wire form and samples what its context and weights determine.

    python vllm_replica.py PORT [SECONDS_PER_CHUNK]

Every token follows from the tokens before it, wherever they were sampled: a token that is lost,
doubled or sampled after something else makes another reply. A logprob tells the token and the
weights that sampled it. It imports nothing of the project, so that it starts at once.
"""

import asyncio
import json
import math
import sys
from pathlib import Path

START, END = 256, 257
CHUNK = 3


def reply_to(prompt_ids):
    """The whole reply to a prompt, whose first user word it repeats."""
    text = bytes(token for token in prompt_ids if token < START).decode(errors="replace")
    words = (text.split("user\n", 1)[-1].split() or ["nobody"])[0]
    return [*f"{words} answers at {len(prompt_ids)}, and goes on for a while".encode(), END]


def logprob(token, weights):
    return -math.log(2 + token) - 8.0 * weights


def next_token(context):
    """The token after a context: the reply's next, where the last turn is the assistant's."""
    marks = [place for place, token in enumerate(context) if token == START]
    if not marks:
        return 32 + len(context) % 64
    begins = marks[-1] + 1 + len(b"assistant\n")
    whole = reply_to(context[:begins])
    return whole[min(len(context) - begins, len(whole) - 1)]


class Server:
    def __init__(self, chunk_s):
        self.chunk_s = chunk_s
        self.weights, self.label = 0, "base"
        self.running = asyncio.Event()
        self.running.set()

    async def serve(self, reader, writer):
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            length = [
                int(line.split(":")[1])
                for line in head.splitlines()
                if line.lower().startswith("content-length")
            ]
            body = json.loads(await reader.readexactly(length[0])) if length and length[0] else {}
            target = head.split(" ", 2)[1]
            await self.answer(writer, target.split("?")[0], body)
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def answer(self, writer, path, body):
        if path == "/inference/v1/generate":
            return await self.generate(writer, body)
        pages = {
            "/v1/models": {"data": [{"id": "bytes", "max_model_len": 8192}]},
            "/version": {"version": "0.32.0"},
            "/is_paused": {"is_paused": not self.running.is_set()},
        }
        if path == "/pause":
            self.running.clear()
        if path == "/resume":
            self.running.set()
        if path == "/collective_rpc":
            folder = Path(body["kwargs"]["weights_path"])
            self.weights = int((folder / "model.safetensors").read_text())
        if path == "/update_weight_version":
            self.label = body["new_version"]
        page(writer, pages.get(path, {}))

    async def generate(self, writer, body):
        asked = body["sampling_params"]
        if not body.get("stream"):
            await self.running.wait()
            return page(writer, {"choices": [self.first(body["token_ids"], asked)]})
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n")
        context, spans, total, reason = list(body["token_ids"]), [], 0, None
        while reason is None:
            await asyncio.sleep(self.chunk_s)
            await self.running.wait()
            ids = []
            while len(ids) < CHUNK and reason is None:
                ids.append(next_token(context))
                context.append(ids[-1])
                if ids[-1] in asked["stop_token_ids"]:
                    reason = "stop"
                elif total + len(ids) == asked["max_tokens"]:
                    reason = "length"
            if not spans or spans[-1]["version"] != self.label:
                spans.append({"version": self.label, "start": total, "end": total})
            total += len(ids)
            spans[-1]["end"] = total
            content = [{"token_id": t, "logprob": logprob(t, self.weights)} for t in ids]
            choice = {"token_ids": ids, "logprobs": {"content": content}, "finish_reason": reason}
            choice["weight_versions"] = spans if reason else None
            data = b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"
            writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
            await writer.drain()
        writer.write(b"0\r\n\r\n")

    def first(self, prompt, asked):
        """One token with two likely ones, sharper where it is cooler: processed logprobs."""
        token = next_token(prompt)
        top = [
            {"token_id": token, "logprob": -0.1 / asked["temperature"]},
            {"token_id": token + 1, "logprob": -2.1 / asked["temperature"]},
        ]
        content = [{"token_id": token, "logprob": top[0]["logprob"], "top_logprobs": top}]
        return {
            "token_ids": [token],
            "logprobs": {"content": content},
            "finish_reason": "length",
            "weight_versions": [{"version": self.label, "start": 0, "end": 1}],
        }


def page(writer, content):
    data = json.dumps(content).encode()
    head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(data)}\r\nConnection: close\r\n\r\n"
    writer.write(head.encode() + data)


async def main():
    server = Server(float(sys.argv[2]) if len(sys.argv) > 2 else 0.0)
    async with await asyncio.start_server(server.serve, "127.0.0.1", int(sys.argv[1])) as listening:
        await listening.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
