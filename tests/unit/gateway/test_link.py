"""What a gateway's processes tell each other, also what one of them cannot take or give."""

import asyncio
import pickle
import socket
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

from polar import errors
from polar.errors import ContextOverflow, GatewayError, PolarError
from polar.gateway.link import Link


@dataclass(frozen=True)
class Unreadable:
    """Can be sent, and cannot be made again by who is sent it: it is of a script, say."""

    name: str

    def __reduce__(self):
        return _missing, (self.name,)


def _missing(name):
    raise AttributeError(f"module '__main__' has no attribute '{name}'")


@asynccontextmanager
async def linked(handle):
    """Two ends of a link; the second one answers."""
    lost = []
    ours, theirs = socket.socketpair()
    one = Link(handle, lambda: lost.append("one"))
    two = Link(handle, lambda: lost.append("two"))
    await one.connect(ours)
    await two.connect(theirs)
    try:
        async with asyncio.timeout(10):
            yield one
        assert lost == []
    finally:
        one.close()
        two.close()


async def echo(message):
    return message


async def test_a_question_that_the_other_end_cannot_read_is_answered_with_why():
    async def handle(message):
        return "read"

    async with linked(handle) as link:
        with pytest.raises(GatewayError, match="no attribute 'kind_of'"):
            await link.ask(Unreadable("kind_of"))
        assert await link.ask("next") == "read"


async def test_an_answer_that_cannot_be_read_fails_who_asked_and_nobody_else():
    async def handle(message):
        return Unreadable("usage") if message == "first" else message

    async with linked(handle) as link:
        with pytest.raises(GatewayError, match="no attribute 'usage'"):
            await link.ask("first")
        assert await link.ask("next") == "next"


async def test_an_answer_that_cannot_be_sent_is_answered_with_why():
    async def handle(message):
        return (lambda: None) if message == "first" else message

    async with linked(handle) as link:
        with pytest.raises(GatewayError, match="cannot be sent"):
            await link.ask("first")
        assert await link.ask("next") == "next"


async def test_an_unreadable_message_that_wants_no_answer_is_logged(caplog):
    async with linked(echo) as link:
        link.tell(Unreadable("news"))
        assert await link.ask("next") == "next"
    assert "no attribute 'news'" in caplog.text


async def test_an_error_of_any_form_arrives_as_it_was_raised():
    async def handle(message):
        raise ContextOverflow(prompt_tokens=9, max_context=8)

    async with linked(handle) as link:
        with pytest.raises(ContextOverflow, match="has 9 tokens") as raised:
            await link.ask("anything")
    assert (raised.value.prompt_tokens, raised.value.max_context) == (9, 8)


@pytest.mark.parametrize("name", [each for each in errors.__all__ if each != "ContextOverflow"])
def test_every_error_keeps_its_parts_between_processes(name):
    error: PolarError = getattr(errors, name)("it broke", where="here", fix="Mend it.")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error) == "it broke (at here). Mend it."
