"""Who is looked at when: servers that are lost, and those that come back."""

import asyncio
from contextlib import asynccontextmanager
from pathlib import Path

from polar.engines import Capabilities
from polar.engines.servers.health import Health
from polar.engines.servers.member import Member
from polar.engines.servers.stamping import ServerWeights
from polar.engines.settings import VllmSettings
from polar.errors import ServerLost

SETTINGS = VllmSettings(urls=("http://nowhere",), check_interval_s=1000, backoff_s=1000)
MANY = 20
"""Failures after which a server is left alone for the longest time."""


class FakeReplica:
    """A server that is up or not, and has weights of a version."""

    def __init__(self, number: int) -> None:
        self.address = f"server-{number}"
        self.weights = ServerWeights(self.address)
        self.weight_version: int | None = 0
        self.up = True
        self.tries = 0
        self.tried = asyncio.Event()

    async def probe(self) -> Capabilities:
        self.tries += 1
        self.tried.set()
        await self.check()
        return Capabilities("m", 100, token_ids=True, logprobs=True, weight_updates=True)

    async def check(self) -> None:
        if not self.up:
            raise ServerLost("it is down", where=self.address)

    async def load_weights(self, version: int, path: Path | None) -> None:
        self.weight_version = version

    async def pause(self) -> None: ...

    async def resume(self) -> None: ...

    async def drop_streams(self) -> None: ...


@asynccontextmanager
async def watched(count: int):
    replicas = [FakeReplica(number) for number in range(count)]
    members = [Member(each) for each in replicas]
    health = Health(members, SETTINGS)
    await health.begin()
    try:
        async with asyncio.timeout(60):
            yield health, members, replicas
    finally:
        await health.aclose()


async def left_alone(health: Health, member: Member) -> None:
    """Lose a server that is down, until nobody would look at it again for long."""
    replica = member.replica
    replica.up = False
    replica.tried.clear()
    member.failures = MANY
    health.lose(member, ServerLost("it is down", where=member.address))
    await replica.tried.wait()
    await asyncio.sleep(0)  # that try has failed, and the wait for the next begun


async def test_the_only_server_is_tried_again_soon_however_often_that_failed():
    async with watched(1) as (health, (member,), (replica,)):
        await left_alone(health, member)
        replica.up = True
        await health.wait_for_one()


async def test_a_server_lost_long_ago_is_looked_at_once_the_last_other_one_is_lost():
    async with watched(2) as (health, (old, other), (replica, _)):
        await left_alone(health, old)
        replica.up = True
        await left_alone(health, other)
        await health.wait_for_one()
        assert old.serving
        assert not other.serving


async def test_a_lost_server_is_looked_at_once_another_process_tells_of_weights():
    async with watched(2) as (health, (lost, _), (replica, other)):
        await health.follow(0)
        await left_alone(health, lost)
        replica.up = True
        replica.weight_version = other.weight_version = 1
        replica.tried.clear()
        await health.follow(1)
        await replica.tried.wait()


async def test_others_are_told_when_a_server_serves_again_with_the_weights_it_had():
    async with watched(2) as (health, (lost, _), _):
        told = asyncio.Event()

        async def tell() -> None:
            assert lost.serving
            told.set()

        health.on_weights = tell
        health.lose(lost, ServerLost("it was slow", where=lost.address))
        await told.wait()
