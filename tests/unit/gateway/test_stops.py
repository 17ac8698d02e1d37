"""Stop strings, however the text is cut into pieces."""

import hypothesis.strategies as st
from hypothesis import given

from polar.gateway.stops import StopFilter

short = st.text("ab", max_size=6)
stops = st.lists(st.text("ab", min_size=1, max_size=3), max_size=3)


def passed(pieces, stops):
    found = StopFilter(stops)
    text = "".join(map(found.feed, pieces))
    return text + found.finish(), found.stopped


@given(st.lists(short, max_size=6), stops)
def test_the_text_ends_before_the_stop_string_that_is_complete_first(pieces, stops):
    text = "".join(pieces)
    cuts = [text.find(stop) for stop in stops if stop in text]
    found, stopped = passed(pieces, stops)
    assert stopped == bool(cuts)
    assert text.startswith(found)
    assert not any(stop in found for stop in stops)
    if not cuts:
        assert found == text


@given(st.text("ab", max_size=12), stops)
def test_fed_by_single_characters_the_earliest_end_decides(text, stops):
    ends = [(text.find(stop) + len(stop), text.find(stop)) for stop in stops if stop in text]
    found, stopped = passed(list(text), stops)
    if ends:
        end = min(ends)[0]
        assert (found, stopped) == (text[: min(at for e, at in ends if e == end)], True)


def test_text_that_cannot_become_a_stop_string_is_not_held_back():
    found = StopFilter(["</end>"])
    assert found.feed("hello <") == "hello "
    assert found.feed("b") == "<b"
    assert found.feed("</end") == ""
    assert found.feed(">more") == ""
    assert found.stopped
    assert found.feed("after") == ""
