"""Calls on llama.cpp's wire form: what is asked for afterwards, and what is sampled too far."""

from gateway_support import ByteRenderer, Setup, ask
from llamacpp_wire import is_part_of_a_character, llamacpp_wire

from polar.engines.llamacpp import LlamaCppEngine
from polar.engines.settings import LlamaCppSettings
from polar.gateway import Gateway
from polar.store import SqliteJournal
from polar.trajectory import build


class StoppingRenderer(ByteRenderer):
    """Ends a turn at tokens that the server's two-token model comes by."""

    stop_token_ids = (*range(60, 70),)


async def test_each_call_says_what_was_measured_and_what_was_sampled_too_far(tmp_path):
    requests = []
    async with (
        llamacpp_wire(requests) as url,
        SqliteJournal.open(tmp_path / "journal.db") as journal,
    ):
        engine = LlamaCppEngine(LlamaCppSettings(urls=(url,)))
        gateway = Gateway(engine, StoppingRenderer(), journal)
        async with gateway.serve() as address:
            setup = Setup(gateway, engine, journal, address.url)
            session = await setup.open()
            requests.clear()
            async with setup.client(session) as client:
                for said in ("hi", "ho", "hey"):
                    await client.chat.completions.create(**ask(said, max_tokens=60))
            usage = gateway.usage(session.id)
            calls = await journal.calls(session.id)
        await engine.aclose()

    sampled = sum(each["n_predict"] for each in requests if "logit_bias" not in each)
    handed_over = [token for call in calls for token in call.sampled_ids.tolist()]
    parts = sum(map(is_part_of_a_character, handed_over))
    report = build(calls).report
    for counted in (usage, report):
        assert counted.measured_tokens == parts > 0
        assert counted.discarded_tokens == sampled - len(handed_over) > 0
    assert report.sampled == usage.sampled_tokens == len(handed_over)
    assert sum(call.measured_tokens for call in calls) == parts
