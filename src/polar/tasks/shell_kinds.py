"""The kinds of exercises of the shell family: what each says, how it is solved, what must be then.

Every exercise is solved by one short command that the instruction names. The kinds that are held
out use other tools or options than those for training, in the same forms of sentence and command.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from polar.tasks.shell_scene import Scene

__all__ = ["HELDOUT_KINDS", "TRAIN_KINDS", "Kind"]

Files = Mapping[str, str]
Checks = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of exercise."""

    name: str
    command: str
    """Solves it; fields of `Scene` in braces."""
    says: tuple[str, ...]
    """Ways to ask for it; fields of `Scene` in braces."""
    lays: Callable[[Scene], Files]
    """Files that are there before."""
    checks: Callable[[Scene], Checks]
    """What must hold after, in the form of the `files` evaluator."""
    before: tuple[str, ...] = ()
    """Commands that find out what `command` needs to know; fields of `Scene` in braces."""


def _text(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _holds(path: str, lines: Iterable[str]) -> Checks:
    return (
        {"path": path, "exists": True},
        {"path": path, "equals": _text(lines), "strip": True},
    )


def _counts(path: str, count: int) -> Checks:
    """Accept the count alone or with the name of the input, as `wc` prints it."""
    return ({"path": path, "exists": True}, {"path": path, "matches": rf"\A\s*{count}\b"})


def _filter(
    name: str,
    tool: str,
    *says: str,
    of: Callable[[Scene], Sequence[str]],
    gives: Callable[[Scene], Iterable[str]],
) -> Kind:
    """Make a kind in which a tool reads file `a` and its output goes to file `b`."""
    return Kind(
        name,
        command=f"{tool} {{a}} > {{b}}",
        says=says,
        lays=lambda s: {s.a: _text(of(s))},
        checks=lambda s: _holds(s.b, gives(s)),
    )


def _words_in_a(s: Scene) -> Files:
    return {s.a: _text(s.words)}


def _nothing(_: Scene) -> Files:
    return {}


def _a_and_folder(s: Scene) -> Files:
    return {s.a: _text(s.words), f"{s.d}/{s.c}": _text(s.other)}


def _folder(s: Scene) -> Files:
    return {f"{s.d}/{s.a}": _text(s.words), f"{s.d}/{s.c}": _text(s.other)}


def _numbered(lines: Sequence[str]) -> list[str]:
    return [f"{i:6}\t{line}" for i, line in enumerate(lines, start=1)]


def _wrapped(lines: Sequence[str], width: int) -> list[str]:
    return [line[i : i + width] for line in lines for i in range(0, len(line), width)]


TRAIN_KINDS: tuple[Kind, ...] = (
    _filter(
        "sort",
        "sort",
        "Sort the lines of {a} with `sort` and save the result to {b}.",
        "Use `sort` on {a} and write the sorted lines to {b}.",
        of=lambda s: s.words,
        gives=lambda s: sorted(s.words),
    ),
    _filter(
        "sort-numbers",
        "sort -n",
        "Sort the numbers in {a} with `sort -n` and save the result to {b}.",
        "Use `sort -n` on {a} and write the sorted numbers to {b}.",
        of=lambda s: s.numbers,
        gives=lambda s: sorted(s.numbers, key=int),
    ),
    _filter(
        "first-lines",
        "head -n {n}",
        "Save the first {n} lines of {a} to {b} with `head -n {n}`.",
        "Use `head -n {n}` on {a} and write the output to {b}.",
        of=lambda s: s.words,
        gives=lambda s: s.words[: s.n],
    ),
    _filter(
        "last-lines",
        "tail -n {n}",
        "Save the last {n} lines of {a} to {b} with `tail -n {n}`.",
        "Use `tail -n {n}` on {a} and write the output to {b}.",
        of=lambda s: s.words,
        gives=lambda s: s.words[-s.n :],
    ),
    _filter(
        "with-word",
        "grep {word}",
        "Find the lines of {a} that have {word} with `grep {word}` and save them to {b}.",
        "Use `grep {word}` on {a} and write the lines to {b}.",
        of=lambda s: s.pairs,
        gives=lambda s: [line for line in s.pairs if s.word in line],
    ),
    Kind(
        "count-lines",
        command="wc -l < {a} > {b}",
        says=(
            "Count the lines of {a} with `wc -l` and save the number to {b}.",
            "Use `wc -l` on {a} and write the count to {b}.",
        ),
        lays=_words_in_a,
        checks=lambda s: _counts(s.b, len(s.words)),
    ),
    Kind(
        "upper-case",
        command="tr a-z A-Z < {a} > {b}",
        says=(
            "Turn {a} into capital letters with `tr a-z A-Z` and save the result to {b}.",
            "Use `tr a-z A-Z` on {a} and write the output to {b}.",
        ),
        lays=_words_in_a,
        checks=lambda s: _holds(s.b, [word.upper() for word in s.words]),
    ),
    Kind(
        "swap-letter",
        command="tr {letter} X < {a} > {b}",
        says=(
            "Turn each {letter} in {a} into X with `tr {letter} X` and save the result to {b}.",
            "Use `tr {letter} X` on {a} and write the output to {b}.",
        ),
        lays=_words_in_a,
        checks=lambda s: _holds(s.b, [word.replace(s.letter, "X") for word in s.words]),
    ),
    _filter(
        "second-column",
        "cut -d , -f 2",
        "Save the second column of {a} to {b} with `cut -d , -f 2`.",
        "Use `cut -d , -f 2` on {a} and write the column to {b}.",
        of=lambda s: s.rows,
        gives=lambda s: [row.split(",")[1] for row in s.rows],
    ),
    _filter(
        "replace-word",
        "sed s/{word}/{new}/",
        "Replace {word} by {new} in {a} with `sed s/{word}/{new}/` and save the result to {b}.",
        "Use `sed s/{word}/{new}/` on {a} and write the output to {b}.",
        of=lambda s: s.pairs,
        gives=lambda s: [line.replace(s.word, s.new, 1) for line in s.pairs],
    ),
    Kind(
        "join-files",
        command="cat {a} {c} > {b}",
        says=(
            "Join {a} and {c} with `cat` and save the result to {b}.",
            "Use `cat` on {a} and {c} and write the output to {b}.",
        ),
        lays=lambda s: {s.a: _text(s.words), s.c: _text(s.other)},
        checks=lambda s: _holds(s.b, [*s.words, *s.other]),
    ),
    Kind(
        "copy-file",
        command="cp {a} {b}",
        says=("Copy {a} to {b} with `cp`.", "Use `cp` to make a copy of {a} named {b}."),
        lays=_words_in_a,
        checks=lambda s: _holds(s.b, s.words),
    ),
    Kind(
        "rename-file",
        command="mv {a} {b}",
        says=("Rename {a} to {b} with `mv`.", "Use `mv` to give {a} the new name {b}."),
        lays=_words_in_a,
        checks=lambda s: (*_holds(s.b, s.words), {"path": s.a, "absent": True}),
    ),
    Kind(
        "copy-into-folder",
        command="cp {a} {d}",
        says=("Copy {a} into the folder {d} with `cp`.", "Use `cp` to put a copy of {a} in {d}."),
        lays=_a_and_folder,
        checks=lambda s: _holds(f"{s.d}/{s.a}", s.words),
    ),
    Kind(
        "delete-file",
        command="rm {a}",
        says=("Delete the file {a} with `rm`.", "Use `rm` to remove {a}."),
        lays=lambda s: {s.a: _text(s.words), s.c: _text(s.other)},
        checks=lambda s: ({"path": s.a, "absent": True},),
    ),
    Kind(
        "rename-folder",
        command="mv {d} {e}",
        says=("Rename the folder {d} to {e} with `mv`.", "Use `mv` to rename {d} to {e}."),
        lays=_folder,
        checks=lambda s: (
            *_holds(f"{s.e}/{s.a}", s.words),
            *_holds(f"{s.e}/{s.c}", s.other),
            {"path": s.d, "absent": True},
        ),
    ),
    Kind(
        "delete-folder",
        command="rm -r {d}",
        says=("Delete the folder {d} with `rm -r`.", "Use `rm -r` to remove {d}."),
        lays=_folder,
        checks=lambda s: ({"path": s.d, "absent": True},),
    ),
    Kind(
        "make-folder",
        command="mkdir {d}",
        says=("Make a folder named {d} with `mkdir`.", "Use `mkdir` to create the folder {d}."),
        lays=_nothing,
        checks=lambda s: ({"path": s.d, "is_dir": True},),
    ),
    Kind(
        "make-empty-file",
        command="touch {b}",
        says=("Create an empty file {b} with `touch`.", "Use `touch` to make the file {b}."),
        lays=_nothing,
        checks=lambda s: _holds(s.b, ()),
    ),
    Kind(
        "write-word",
        command="echo {word} > {b}",
        says=(
            "Write the word {word} to {b} with `echo {word}`.",
            "Use `echo {word}` and save the output in {b}.",
        ),
        lays=_nothing,
        checks=lambda s: _holds(s.b, [s.word]),
    ),
    Kind(
        "append-word",
        command="echo {word} >> {a}",
        says=(
            "Add the word {word} to the end of {a} with `echo` and `>>`.",
            "Use `echo` and `>>` to append {word} to {a}.",
        ),
        lays=_words_in_a,
        checks=lambda s: ({"path": s.a, "equals": _text([*s.words, s.word]), "strip": True},),
    ),
    Kind(
        "read-only",
        command="chmod 444 {a}",
        says=("Make {a} read-only with `chmod 444`.", "Use `chmod 444` on {a}."),
        lays=_words_in_a,
        checks=lambda s: ({"path": s.a, "mode": "444"},),
    ),
)

HELDOUT_KINDS: tuple[Kind, ...] = (
    _filter(
        "sort-backwards",
        "sort -r",
        "Sort the lines of {a} in reverse with `sort -r` and save the result to {b}.",
        "Use `sort -r` on {a} and write the output to {b}.",
        of=lambda s: s.words,
        gives=lambda s: sorted(s.words, reverse=True),
    ),
    _filter(
        "mirror-lines",
        "rev",
        "Reverse each line of {a} with `rev` and save the result to {b}.",
        "Use `rev` on {a} and write the output to {b}.",
        of=lambda s: s.words,
        gives=lambda s: [word[::-1] for word in s.words],
    ),
    _filter(
        "drop-repeats",
        "uniq",
        "Drop the repeated lines of {a} with `uniq` and save the result to {b}.",
        "Use `uniq` on {a} and write the output to {b}.",
        of=lambda s: s.repeats,
        gives=lambda s: [
            line
            for line, before in zip(s.repeats, (None, *s.repeats), strict=False)
            if line != before
        ],
    ),
    _filter(
        "without-word",
        "grep -v {word}",
        "Find the lines of {a} without {word} with `grep -v {word}` and save them to {b}.",
        "Use `grep -v {word}` on {a} and write the lines to {b}.",
        of=lambda s: s.pairs,
        gives=lambda s: [line for line in s.pairs if s.word not in line],
    ),
    _filter(
        "first-letters",
        "cut -c 1-{n}",
        "Save the first {n} letters of each line of {a} to {b} with `cut -c 1-{n}`.",
        "Use `cut -c 1-{n}` on {a} and write the output to {b}.",
        of=lambda s: s.words,
        gives=lambda s: [word[: s.n] for word in s.words],
    ),
    _filter(
        "wrap-lines",
        "fold -w {n}",
        "Break the lines of {a} after {n} letters with `fold -w {n}` and save the result to {b}.",
        "Use `fold -w {n}` on {a} and write the output to {b}.",
        of=lambda s: s.words,
        gives=lambda s: _wrapped(s.words, s.n),
    ),
    _filter(
        "drop-line",
        "sed {n}d",
        "Drop line {n} of {a} with `sed {n}d` and save the result to {b}.",
        "Use `sed {n}d` on {a} and write the output to {b}.",
        of=lambda s: s.words,
        gives=lambda s: [*s.words[: s.n - 1], *s.words[s.n :]],
    ),
    _filter(
        "number-lines",
        "nl",
        "Number the lines of {a} with `nl` and save the result to {b}.",
        "Use `nl` on {a} and write the numbered lines to {b}.",
        of=lambda s: s.words,
        gives=lambda s: _numbered(s.words),
    ),
    Kind(
        "count-words",
        command="wc -w < {a} > {b}",
        says=(
            "Count the words of {a} with `wc -w` and save the number to {b}.",
            "Use `wc -w` on {a} and write the count to {b}.",
        ),
        lays=lambda s: {s.a: _text(s.pairs)},
        checks=lambda s: _counts(s.b, 2 * len(s.pairs)),
    ),
    Kind(
        "drop-letter",
        command="tr -d {letter} < {a} > {b}",
        says=(
            "Remove the letter {letter} from {a} with `tr -d {letter}` and save the result to {b}.",
            "Use `tr -d {letter}` on {a} and write the output to {b}.",
        ),
        lays=_words_in_a,
        checks=lambda s: _holds(s.b, [word.replace(s.letter, "") for word in s.words]),
    ),
    Kind(
        "side-by-side",
        command="paste {a} {c} > {b}",
        says=(
            "Put {a} and {c} side by side with `paste` and save the result to {b}.",
            "Use `paste` on {a} and {c} and write the output to {b}.",
        ),
        lays=lambda s: {s.a: _text(s.words), s.c: _text(s.other)},
        checks=lambda s: _holds(
            s.b, ["\t".join(each) for each in zip(s.words, s.other, strict=True)]
        ),
    ),
    Kind(
        "count-up",
        command="seq {n} > {b}",
        says=(
            "Write the numbers from 1 to {n} to {b} with `seq {n}`.",
            "Use `seq {n}` and save the output in {b}.",
        ),
        lays=_nothing,
        checks=lambda s: _holds(s.b, [str(i) for i in range(1, s.n + 1)]),
    ),
    Kind(
        "copy-folder",
        command="cp -r {d} {e}",
        says=("Copy the folder {d} to {e} with `cp -r`.", "Use `cp -r` to copy {d} to {e}."),
        lays=_folder,
        checks=lambda s: (
            *_holds(f"{s.e}/{s.a}", s.words),
            *_holds(f"{s.e}/{s.c}", s.other),
        ),
    ),
    Kind(
        "make-nested-folder",
        command="mkdir -p {d}/{e}",
        says=("Make the folder {d}/{e} with `mkdir -p`.", "Use `mkdir -p` to create {d}/{e}."),
        lays=_nothing,
        checks=lambda s: ({"path": f"{s.d}/{s.e}", "is_dir": True},),
    ),
    Kind(
        "link-file",
        command="ln -s {a} {b}",
        says=("Link {a} as {b} with `ln -s`.", "Use `ln -s` to link {a} as {b}."),
        lays=_words_in_a,
        checks=lambda s: ({"path": s.b, "link_to": s.a},),
    ),
    Kind(
        "make-executable",
        command="chmod +x {a}",
        says=("Make {a} executable with `chmod +x`.", "Use `chmod +x` on {a}."),
        lays=_words_in_a,
        checks=lambda s: ({"path": s.a, "executable": True},),
    ),
)
