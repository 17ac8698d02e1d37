"""Where prompts find what has been computed before."""

from hypothesis import given
from hypothesis import strategies as st

from polar.engines.embedded.slots import SlotTable, common_prefix

TOKENS = st.lists(st.integers(0, 2), max_size=40)


def finished(table, prompt, computed, affinity=""):
    """Let a request run to its end, leaving `computed` in its slot."""
    placement = table.place(prompt, affinity)
    placement.slot.tokens = list(computed)
    table.release(placement.slot)
    return placement.slot


@given(TOKENS, TOKENS, TOKENS)
def test_the_common_prefix_is_the_longest_one(shared, left, right):
    found = common_prefix(shared + left, shared + right)
    assert found >= len(shared)
    assert (shared + left)[:found] == (shared + right)[:found]
    longer = found + 1
    assert longer > min(len(shared + left), len(shared + right)) or (
        (shared + left)[:longer] != (shared + right)[:longer]
    )


@given(st.lists(st.tuples(TOKENS.filter(bool), st.booleans()), max_size=12))
def test_a_placement_never_claims_what_its_source_does_not_hold(requests):
    table = SlotTable(3)
    for prompt, grows in requests:
        before = {index: list(slot.tokens) for index, slot in enumerate(table._slots)}
        placement = table.place(prompt, "")
        assert placement.length < len(prompt)
        assert before[placement.source.index][: placement.length] == prompt[: placement.length]
        assert placement.slot.tokens == prompt[: placement.length]
        placement.slot.tokens = prompt + [9] * grows
        table.release(placement.slot)


def test_the_next_turn_of_a_conversation_goes_on_in_its_slot():
    table = SlotTable(4)
    slot = finished(table, [1, 2, 3], [1, 2, 3, 4])
    placement = table.place([1, 2, 3, 4, 5, 6], "")
    assert placement.slot is slot
    assert placement.length == 4


def test_a_sibling_copies_the_prompt_and_leaves_the_reply_alone():
    table = SlotTable(2)
    slot = finished(table, [1, 2, 3], [1, 2, 3, 7, 8, 9], affinity="one")
    placement = table.place([1, 2, 3, 4], "two")
    assert placement.slot is not slot
    assert placement.source is slot
    assert placement.length == 3
    assert slot.tokens == [1, 2, 3, 7, 8, 9]


def test_a_conversation_that_rewrote_its_end_takes_its_own_slot_back():
    table = SlotTable(2)
    slot = finished(table, [1, 2, 3], [1, 2, 3, 7, 8, 9], affinity="one")
    assert table.place([1, 2, 3, 4], "one").slot is slot


def test_a_prefix_is_copied_from_a_slot_that_is_in_use():
    table = SlotTable(2)
    busy = table.place([1, 2, 3, 4], "one")
    busy.slot.tokens = [1, 2, 3, 4]
    placement = table.place([1, 2, 3, 9], "two")
    assert placement.source is busy.slot
    assert placement.length == 3


def test_the_slot_unused_for_longest_is_given_up_first():
    table = SlotTable(2)
    older = finished(table, [1], [1, 1])
    finished(table, [2], [2, 2])
    assert table.place([5, 5], "").slot is older


def test_the_last_token_of_a_known_prompt_is_computed_again_for_its_logits():
    table = SlotTable(1)
    finished(table, [1, 2, 3], [1, 2, 3])
    assert table.place([1, 2, 3], "").length == 2


def test_nothing_is_found_after_the_weights_have_changed():
    table = SlotTable(2)
    finished(table, [1, 2, 3], [1, 2, 3], affinity="one")
    table.forget()
    assert table.longest_prefix([1, 2, 3]) == 0
    assert table.place([1, 2, 3], "one").length == 0
