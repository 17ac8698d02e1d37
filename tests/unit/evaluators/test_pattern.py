import pytest

from polar.evaluators.pattern import PatternTimeout, search


def test_a_pattern_is_found_anywhere():
    assert search("b+", "abbc", timeout_s=30)
    assert not search("^b", "abbc", timeout_s=30)


def test_characters_of_every_plane_reach_the_search():
    assert search("^\N{GRINNING FACE}\r\n\x00é$", "\N{GRINNING FACE}\r\n\x00é", timeout_s=30)


def test_a_search_without_end_is_given_up():
    with pytest.raises(PatternTimeout):
        search("(a+)+$", "a" * 60 + "b", timeout_s=0.5)
