"""The things that exercises of the shell family are about: names, words, numbers, lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import TypeVar

__all__ = ["Dice", "Scene", "draw_scene"]

ItemT = TypeVar("ItemT")

_NAMES = (  # noqa: SIM905 - a list of words reads better as text
    "animals apples authors birds books boxes cards cities clouds coins colors desks dogs farms "
    "fish flags flowers forests fruits games garden houses islands jobs kings lakes letters maps "
    "metals months music names notes orders parts people pets planets plants points ports rivers "
    "roads rooms rows ships shops songs spices stars stones students tables teams tools towns "
    "toys trains trees villages words"
).split()
_WORDS = (  # noqa: SIM905
    "apple arrow bell berry boat bread bridge brown candle castle cedar cherry circle clover "
    "cotton crow dragon eagle ember feather field flame forest garlic ginger grape green hammer "
    "harbor honey island ivory jacket jungle kettle ladder lemon lion maple marble meadow melon "
    "mirror mountain needle ocean olive onion orange owl paper pearl pepper pigeon plum pocket "
    "purple rabbit river robin rocket salmon sand shadow silver smoke spider spring stone storm "
    "sugar summer thunder tiger tulip turtle valley velvet violet walnut water whale willow "
    "window winter wolf wood yellow zebra"
).split()
_EXTENSIONS = ("txt", "md", "csv", "log")


@dataclass(frozen=True, slots=True)
class Scene:
    """What one exercise draws from: each kind uses what it needs."""

    a: str
    """File that is there, `fruits.txt`."""
    b: str
    """Another file name."""
    c: str
    """A third file name."""
    d: str
    """A folder name."""
    e: str
    """Another folder name."""
    n: int
    """From 2 to 4, less than the lines of a file."""
    word: str
    """In some lines of `pairs`, and not in all."""
    new: str
    """A word that is in no line."""
    letter: str
    """A letter of the first word of `words`."""
    words: tuple[str, ...]
    """Lines of one word, all different, in no order."""
    other: tuple[str, ...]
    """As many more such lines."""
    pairs: tuple[str, ...]
    """Lines of two words."""
    numbers: tuple[str, ...]
    """Lines of one number, in an order that is neither that of the numbers nor of the text."""
    repeats: tuple[str, ...]
    """Lines of one word, some of them twice or more in a row."""
    rows: tuple[str, ...]
    """Lines of a word, a number and a word, joined by commas."""


class Dice:
    """Draws that are the same in every Python version: `Random.random` alone is promised to be."""

    def __init__(self, seed: str) -> None:
        self._random = Random(seed).random

    def number(self, low: int, high: int) -> int:
        """Draw from `low` to `high`, both included."""
        return low + int(self._random() * (high - low + 1))

    def one(self, items: Sequence[ItemT]) -> ItemT:
        """Draw one item."""
        return items[self.number(0, len(items) - 1)]

    def some(self, items: Sequence[ItemT], count: int) -> tuple[ItemT, ...]:
        """Draw `count` items without repetition, in random order."""
        left = list(items)
        return tuple(left.pop(self.number(0, len(left) - 1)) for _ in range(count))


def draw_scene(dice: Dice) -> Scene:
    """Draw one scene."""
    size = dice.number(4, 6)
    drawn = dice.some(_WORDS, 3 * size + 2)
    words, other, more = drawn[:size], drawn[size : 2 * size], drawn[2 * size : 3 * size]
    word, new = drawn[3 * size :]
    names = dice.some(_NAMES, 5)
    return Scene(
        a=f"{names[0]}.{dice.one(_EXTENSIONS)}",
        b=f"{names[1]}.{dice.one(_EXTENSIONS)}",
        c=f"{names[2]}.{dice.one(_EXTENSIONS)}",
        d=names[3],
        e=names[4],
        n=dice.number(2, size - 2),
        word=word,
        new=new,
        letter=dice.one(words[0]),
        words=_in_no_order(dice, words),
        other=other,
        pairs=_pairs(dice, word=word, words=words, other=other),
        numbers=_numbers(dice, size),
        repeats=_repeats(dice, words),
        rows=tuple(f"{x},{dice.number(10, 99)},{y}" for x, y in zip(words, more, strict=True)),
    )


def _in_no_order(dice: Dice, words: tuple[str, ...]) -> tuple[str, ...]:
    shuffled = words
    while list(shuffled) in (sorted(words), sorted(words, reverse=True)):
        shuffled = dice.some(words, len(words))
    return shuffled


def _pairs(
    dice: Dice, *, word: str, words: tuple[str, ...], other: tuple[str, ...]
) -> tuple[str, ...]:
    having = dice.some(range(len(words)), dice.number(1, len(words) - 2))
    return tuple(
        f"{word} {x}" if i in having else f"{y} {x}"
        for i, (x, y) in enumerate(zip(words, other, strict=True))
    )


def _numbers(dice: Dice, size: int) -> tuple[str, ...]:
    """Draw numbers that `sort` and `sort -n` order differently, and that are in neither order."""
    while True:
        drawn = tuple(str(dice.number(1, 10 ** dice.number(1, 3))) for _ in range(size))
        in_text, in_value = tuple(sorted(drawn)), tuple(sorted(drawn, key=int))
        if len({drawn, in_text, in_value}) == 3 and len(set(drawn)) == size:
            return drawn


def _repeats(dice: Dice, words: tuple[str, ...]) -> tuple[str, ...]:
    """Repeat words in a row, and one of them again at the end, so that sorting loses something."""
    lines = [word for word in words for _ in range(dice.number(1, 2))]
    return (*lines, words[0], words[0])
