"""Rules for answers: the stub that replaces them, their mutants, and their hints."""

from __future__ import annotations

import ast
import functools

from labkit.build.calls import OWN_WORDS, Hint, check_calls, hints
from labkit.build.lab import Cell, Lab, Role
from labkit.build.problems import Problems, nearest
from labkit.build.stubs import SUFFIXES, unanswered

LEAST_MUTANTS = 2


def check(lab: Lab, problems: Problems) -> None:
    """Report errors in the answers, their mutants, and their hints."""
    tested = lab.tested_by
    for answer in lab.answers.values():
        _stub(answer, problems)
        count = len(lab.mutants[answer.grade_id])
        if tested[answer.grade_id] and count < LEAST_MUTANTS:
            problems.add_missing(answer, None, f"{count} mutants; give it at least "
                                 f"{LEAST_MUTANTS}: # %% [raw] mutant=\"{answer.grade_id}\" "
                                 "hint=\"...\"")
    for mutant in lab.of(Role.MUTANT):
        if mutant.grade_id in lab.answers:
            _mutant(mutant, lab, problems)
        else:
            problems.add(mutant, None, f"answer={mutant.grade_id!r} is not an answer in this lab"
                         f"{nearest(mutant.grade_id, lab.answers)}")
    for checking in lab.of(Role.CHECK):
        _hints(checking, lab, problems)


def _stub(answer: Cell, problems: Problems) -> None:
    if answer.path:
        if not answer.path.endswith(tuple(SUFFIXES)):
            problems.add(answer, 1, f"{answer.path}: only files that end with "
                         f"{' and '.join(SUFFIXES)} can be answers, since only they have a stub")
        return
    if answer.tree is None:
        return
    try:
        ast.parse(unanswered(answer.source))
    except SyntaxError as error:
        problems.add(answer, error.lineno, "without the solution this cell is not Python "
                     f"({error.msg}): put the markers around whole statements, with the same "
                     "indentation")


def _mutant(mutant: Cell, lab: Lab, problems: Problems) -> None:
    answer, checks = lab.answers[mutant.grade_id], lab.tested_by[mutant.grade_id]
    if not checks:
        problems.add(mutant, None, "no check tests this answer, so nothing could reject a mutant")
        return
    if mutant.path != answer.path:
        problems.add(mutant, 1, f"it writes {mutant.path}, but the answer writes {answer.path}")
    needed = answer.defines.intersection(*_needed(lab, checks)) if mutant.tree else frozenset()
    if missing := sorted(needed - mutant.defines):
        problems.add(mutant, None, f"it does not define {', '.join(missing)}: every check would "
                     "reject it for that alone")
    others = [other for other in lab.mutants[mutant.grade_id] if other is not mutant]
    for other in [answer, *others]:
        if other.line < mutant.line and _same(mutant, other):
            problems.add(mutant, None, f"it is the same as {other.title} in line {other.line}")
            break
    if not mutant.hint.strip():
        problems.add(mutant, None, "it has no hint=\"...\", a part of the message that the student "
                                   "must see")
    elif not any(_can_produce(checking, mutant.hint) for checking in checks):
        problems.add(mutant, None, f"no hint in {', '.join(c.title for c in checks)} contains "
                     f"{mutant.hint!r}")


def _needed(lab: Lab, checks: list[Cell]) -> list[set[str]]:
    """The names that the checks and the drivers use."""
    used: set[str] = set().union(*(cell.uses for cell in [*checks, *lab.of(Role.DRIVER)]))
    return [used]


def _same(one: Cell, other: Cell) -> bool:
    if one.tree is not None and other.tree is not None:
        return _dumped(one.tree) == _dumped(other.tree)
    return one.source.strip() == other.source.strip()


@functools.lru_cache(maxsize=64)  # an answer is compared with all its mutants
def _dumped(tree: ast.Module) -> str:
    return ast.dump(tree)


def _can_produce(checking: Cell, text: str) -> bool:
    all_hints = list(hints(checking.tree))
    return any(isinstance(hint, Hint) and hint.contains(text) for hint in all_hints) \
        or any(not isinstance(hint, Hint) for hint in all_hints) \
        or any(call.function in OWN_WORDS for call in check_calls(checking.tree))


def _hints(checking: Cell, lab: Lab, problems: Problems) -> None:
    """Every hint is triggered by a mutant of an answer that this check tests."""
    if checking.tree is None:
        return
    texts = [mutant.hint for name in lab.answers_of(checking) for mutant in lab.mutants[name]]
    for hint in hints(checking.tree):
        if not isinstance(hint, Hint):
            if isinstance(hint, ast.Name | ast.DictComp | ast.Dict):
                problems.add(checking, hint.lineno, "write hints out, as {\"text\": wrong, ...}")
        elif not any(text.strip() and hint.contains(text) for text in texts):
            problems.add_missing(checking, hint.line,
                                 f"no mutant triggers the hint {hint.pieces[0]!r}")
