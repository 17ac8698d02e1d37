"""Counts that harnesses compact by, where each client reads them."""

import anthropic
import httpx2
from gateway_support import serving


async def test_a_message_stream_tells_the_prompts_length_from_its_first_event(tmp_path):
    async with serving(tmp_path, "hello") as setup:
        session = await setup.open()
        async with (
            anthropic.AsyncAnthropic(
                base_url=f"{setup.url}/s/{session.key}",
                api_key=session.key,
                max_retries=0,
                http_client=httpx2.AsyncClient(trust_env=False),
            ) as client,
            client.messages.stream(
                model="m", max_tokens=99, messages=[{"role": "user", "content": "hi"}]
            ) as stream,
        ):
            events = [event async for event in stream]
        (call,) = await setup.journal.calls(session.id)
    assert events[0].message.usage.input_tokens == len(call.prompt_ids)
    (last,) = (event for event in events if event.type == "message_delta")
    assert last.usage.input_tokens == len(call.prompt_ids)
    assert last.usage.output_tokens == len(call.sampled_ids)
