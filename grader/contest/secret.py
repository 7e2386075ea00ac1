"""Derive the secret cases, which all students share, and pseudonyms from the course's secret.

Each use has a key of its own, so that a published pseudonym says nothing about the cases.
"""

from __future__ import annotations

import hashlib
import hmac
import inspect
import json
from collections.abc import Iterable, Sequence

from grader.course import Course
from grader.run.settings import Grading
from labkit.contest.declaration import Case, Contest

COLORS = ("amber", "azure", "black", "blue", "bronze", "brown", "coral", "copper", "crimson",
          "cyan", "gold", "gray", "green", "indigo", "ivory", "jade", "lilac", "lime", "maroon",
          "navy", "olive", "orange", "pearl", "pink", "plum", "purple", "red", "silver", "teal",
          "violet", "white", "yellow")
ANIMALS = ("badger", "bear", "beaver", "bison", "camel", "cat", "condor", "crane", "deer",
           "dolphin", "eagle", "falcon", "fox", "gecko", "hare", "heron", "horse", "ibis", "koala",
           "lemur", "lynx", "moose", "otter", "owl", "panda", "puma", "raven", "seal", "swan",
           "tiger", "whale", "wolf")
FEWEST_DIGITS = 6


def _derived(course: Course, use: str, text: str) -> bytes:
    key = hmac.new(course.secret_file.read_bytes(), f"lab contest: {use}".encode(), hashlib.sha256)
    return hmac.new(key.digest(), text.encode(errors="surrogateescape"), hashlib.sha256).digest()


def cases(course: Course, contest: Contest) -> list[Case]:
    """Return the secret cases, the same for every student and at every call.

    Args:
        course: the course, whose secret the cases are drawn from.
        contest: the contest.
    """
    return contest.secret_cases(_derived(course, "cases", contest.name).hex())


def digest(contest: Contest, drawn: Sequence[Case], settings: Grading) -> str:
    """Return the SHA-256, in hex, of what scores depend on besides the file that is played.

    Args:
        contest: the contest, with the file that declares it.
        drawn: the secret cases.
        settings: the limits of a sandbox.
    """
    content = json.dumps([contest.name, [[case.name, case.given] for case in drawn],
                          settings.digest()], sort_keys=True).encode()
    declared = inspect.getsourcefile(contest.score)
    if declared:
        with open(declared, "rb") as file:
            content += file.read()
    return hashlib.sha256(content).hexdigest()


def pseudonyms(course: Course, students: Iterable[str]) -> dict[str, str]:
    """Return a pseudonym for every student, such as "teal-otter-1f09ac"; no two are equal.

    Without the course's secret they cannot be traced back, not even by trying every known id.

    Args:
        course: the course, whose secret determines them; a student has the same one in all its
            contests.
        students: their ids.
    """
    students = sorted(set(students))
    drawn = {student: _derived(course, "pseudonyms", student) for student in students}
    digits = FEWEST_DIGITS
    while len({_spelled(one, digits) for one in drawn.values()}) < len(students):
        digits += 1  # SHA-256 has no known collision, so this ends
    return {student: _spelled(one, digits) for student, one in drawn.items()}


def _spelled(drawn: bytes, digits: int) -> str:
    return (f"{COLORS[drawn[0] % len(COLORS)]}-{ANIMALS[drawn[1] % len(ANIMALS)]}-"
            f"{drawn[2:].hex()[:digits]}")
