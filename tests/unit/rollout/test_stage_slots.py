"""Who gets a slot next, and that none is lost."""

import asyncio
import random

from polar.rollout.slots import Slots


async def settle():
    for _ in range(5):
        await asyncio.sleep(0)


async def test_the_lowest_rank_is_served_first_and_within_a_rank_the_first_to_come():
    slots, order = Slots(1), []
    await slots.acquire(0)

    async def wait(rank, name):
        async with slots.hold(rank):
            order.append(name)

    asked = [(2, "a"), (1, "b"), (2, "c"), (1, "d"), (0, "e")]
    waiting = [asyncio.create_task(wait(*each)) for each in asked]
    await settle()
    slots.release()
    await asyncio.gather(*waiting)
    assert order == ["e", "b", "d", "a", "c"]


async def test_a_slot_that_is_given_to_a_waiter_who_is_cancelled_goes_to_the_next():
    slots = Slots(1)
    await slots.acquire(0)
    leaving, staying = (asyncio.create_task(slots.acquire(0)) for _ in range(2))
    await settle()
    slots.release()
    leaving.cancel()
    await asyncio.wait_for(staying, 5)
    assert leaving.cancelled()


async def test_no_more_than_the_slots_are_held_and_none_is_lost_when_waiters_leave():
    slots, chance = Slots(3), random.Random(0)
    held = most = 0

    async def use():
        nonlocal held, most
        async with slots.hold(chance.randrange(3)):
            held += 1
            most = max(most, held)
            try:
                await asyncio.sleep(chance.uniform(0, 0.002))
            finally:
                held -= 1

    users = [asyncio.create_task(use()) for _ in range(300)]
    for user in chance.sample(users, 100):
        await asyncio.sleep(0)
        user.cancel()
    await asyncio.gather(*users, return_exceptions=True)
    assert (held, most) == (0, 3)
    for _ in range(3):
        await asyncio.wait_for(slots.acquire(0), 5)
