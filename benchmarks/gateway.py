"""What a gateway adds to a call: Polar's and its peers', before one engine, in one run.

Engine, gateways and clients are processes of their own. The engine replies at once, out of memory,
in vLLM's wire form (`gateway_parts/engine.py`); what takes time is who stands before it. Clients
hold conversations of ten turns, as an agent does: each request brings the whole history, whose
length is `--prompt-tokens` in the mean. The first turn of a conversation is reported apart.
Conversations have their system prompt in common, as the sessions of a harness do, or nothing
(`--openings`). Everything is captured wherever the server can capture; LiteLLM only relays, and so
does `relay`, a gateway that does nothing else: what it takes no gateway in Python can save.

    python benchmarks/gateway.py --install            # each peer into an environment of its own
    python benchmarks/gateway.py --model MODEL        # all parts, about 30 minutes
    python benchmarks/gateway.py --parts latency --servers direct polar --clients 1
    python benchmarks/gateway.py --parts latency --servers direct polar polar-2   # with 2 workers

Lines of JSON go to standard error (and to `--output`), tables to standard output.
"""

import argparse
import asyncio
import re
import sys
import tempfile
from contextlib import ExitStack
from itertools import product, starmap
from pathlib import Path

import uvloop

sys.path.insert(0, str(Path(__file__).parent))
from gateway_parts import parts, peers
from gateway_parts.material import Material
from gateway_parts.report import Cell, Record, latency_table, plain_table
from gateway_parts.servers import Engine, Polar, Relay, Server, start_peers

from polar.config import environment
from polar.models import resolve
from polar.rendering import load_renderer

PARTS = ("latency", "stream", "session", "memory", "storage")
OPENINGS = ("shared", "distinct")
POLAR = re.compile(r"polar(-\d+)?")


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--install", action="store_true", help="install the peers and end")
    parser.add_argument("--peers", type=Path, help="folder of the peers' environments")
    parser.add_argument("--model", default="smollm2-135m", help="whose tokenizer renders")
    parser.add_argument("--servers", nargs="+", default=["direct", "relay", "polar", *peers.PEERS])
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--openings", nargs="+", choices=OPENINGS, default=OPENINGS)
    parser.add_argument("--prompt-tokens", type=int, nargs="+", default=[8000, 32000])
    parser.add_argument("--sampled-tokens", type=int, default=200)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--turns", type=int, default=10, help="of a conversation")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=3, help="the tables show medians over them")
    parser.add_argument("--token-ms", type=float, default=5.0, help="pace of the streams")
    parser.add_argument("--session-turns", type=int, default=400)
    parser.add_argument("--memory-calls", type=int, default=10_000, help="peers: a tenth")
    parser.add_argument("--output", type=Path, help="file for the lines of JSON")
    return parser.parse_args()


def start(
    arguments: argparse.Namespace, folder: Path, model: str, material: Material, stack: ExitStack
) -> tuple[Engine, list[Server]]:
    """Start the engine and every server that is wanted and there."""

    def started(server: Server) -> Server:
        stack.callback(server.stop)
        return server

    engine = Engine(folder / "engine", material.replies())
    started(engine)
    servers: list[Server] = [engine] if "direct" in arguments.servers else []
    if "relay" in arguments.servers:
        servers.append(started(Relay(folder / "relay", engine.url, arguments.prompt_tokens[0])))
    for name in filter(POLAR.fullmatch, arguments.servers):
        workers = int(name.partition("-")[2] or 0)
        servers.append(started(Polar(folder / name, engine.url, model, workers)))
    wanted = [name for name in peers.PEERS if name in arguments.servers]
    found, absent = start_peers(
        wanted, engine_url=engine.url, folder=folder, installed=arguments.peers
    )
    for name, reason in absent.items():
        print(f"NOT MEASURED: {name}: {reason}\n")
    return engine, [*servers, *map(started, found)]


async def run(
    arguments: argparse.Namespace, material: Material, engine: Engine, servers: list[Server]
) -> None:
    record = Record(arguments.output)
    names = [server.name for server in servers]
    gateways = [server for server in servers if server is not engine and not server.whole_only]
    if "latency" in arguments.parts:
        kinds = (arguments.openings, arguments.prompt_tokens, arguments.clients)
        cells = list(starmap(Cell, product(*kinds)))
        for number in range(arguments.rounds):
            await parts.measure_latency(
                record,
                servers if number % 2 == 0 else servers[::-1],
                material,
                cells,
                seconds=arguments.seconds,
                turns=arguments.turns,
            )
        print(latency_table(record, names, cells), "\n")
    servers = [server for server in servers if not server.whole_only]
    if "stream" in arguments.parts:
        turns = material.turns(arguments.prompt_tokens[0], count=6)
        await parts.measure_streams(record, engine, servers, turns, token_ms=arguments.token_ms)
        print(plain_table(record, "stream", ["target", "token_ms", "first_text_ms", "whole_ms"]))
        print()
    if "session" in arguments.parts:
        turns = material.short_turns(arguments.prompt_tokens[0], count=arguments.session_turns)
        await parts.measure_long_session(record, servers, turns)
        columns = ["target", "turns", "first_50_ms", "last_50_ms", "last_to_first"]
        columns += ["fresh_50_ms", "last_to_fresh"]
        print(plain_table(record, "session", columns), "\n")
    if "memory" in arguments.parts:
        turns = material.turns(arguments.prompt_tokens[0], count=arguments.turns)
        for server in gateways:
            share = 1 if POLAR.fullmatch(server.name) else 10
            calls = arguments.memory_calls // share
            await parts.measure_memory(record, server, turns, calls=calls, clients=8)
        columns = ["target", "calls", "start_mb", "middle_mb", "end_mb", "slope_mb_per_1000_calls"]
        print(plain_table(record, "memory", columns), "\n")
    if "storage" in arguments.parts:
        turns = material.turns(arguments.prompt_tokens[0], count=50)
        for server in gateways:
            await parts.measure_storage(record, server, turns)
        columns = ["target", "turns", "opening_bytes", "bytes_per_turn"]
        print(plain_table(record, "storage", columns))


def main() -> None:
    arguments = read_arguments()
    cache = environment().cache
    arguments.peers = arguments.peers or cache / "peers"
    if arguments.install:
        peers.install(arguments.peers)
        return
    is_folder = Path(arguments.model).is_dir()
    model = arguments.model if is_folder else str(resolve(arguments.model, cache=cache))
    material = Material(load_renderer(model), arguments.sampled_tokens)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        engine, servers = start(arguments, Path(folder), model, material, stack)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(run(arguments, material, engine, servers))


if __name__ == "__main__":
    main()
