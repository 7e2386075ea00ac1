"""Names that are safe on every disk and screen, and reasons for refusing others."""

from __future__ import annotations

import re
import unicodedata

DEEPEST = 8  # folders
LONGEST = 200  # bytes of one name: disks take 255, and we put suffixes behind
LONGEST_ID = 128  # characters: what nbgrader's gradebook takes
RECEIPTS, UNREADABLE = "receipts.jsonl", "unreadable.jsonl"  # of all students, in received/
# Persian and the scripts of India write words with these marks inside, between their own letters.
JOINER = re.compile("(?<=[^\x00-\x7f])[\u200c\u200d](?=[^\x00-\x7f])")
# Letters, marks, and symbols that Unicode shows as nothing, and spaces that are not U+0020.
INVISIBLE = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0"
                       "\U000e0100-\U000e01ef]|(?! )\\s")
_DEVICES = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)  # of Windows


def problem_of(path: str) -> str:
    """Return why a path of an archive or a folder is not taken; empty if it is."""
    parts = path.split("/")
    if path.startswith("/") or re.match(r"[A-Za-z]:", path):
        return "an absolute path"
    if ".." in parts:
        return "a path that leads out of its folder (..)"
    if len(parts) > DEEPEST:
        return f"more than {DEEPEST} folders deep"
    return next(filter(None, map(problem_of_part, parts)), "")


def problem_of_part(name: str) -> str:
    """Return why one part of a path is not taken; empty if it is."""
    if not name or name == ".":
        return "an empty name"
    kinds = {unicodedata.category(letter) for letter in JOINER.sub("", name)}
    if kinds & {"Cc", "Cs", "Zl", "Zp"}:
        return "control characters in its name"
    if kinds & {"Cf", "Cn", "Co"}:  # the order of writing, width zero, letters that are none
        return "invisible characters in its name"
    if set(name) & set('\\:*?"<>|'):
        return "one of \\ : * ? \" < > | in its name"
    if name[-1] in ". " or name[0] == " ":
        return "a space or a period at the end of its name"
    if _DEVICES.fullmatch(name):
        return "a name that Windows reserves for a device"
    if len(name.encode()) > LONGEST:
        return f"a name of more than {LONGEST} bytes"
    return ""


def problem_of_id(student: str) -> str:
    """Return why this cannot be a student's id, which becomes a folder and a cell in tables."""
    if len(student) > LONGEST_ID:
        return f"more than {LONGEST_ID} characters"
    if "/" in student or student.startswith("."):
        return "a slash in it, or a period before it"
    if key_of(student) in (RECEIPTS, UNREADABLE):
        return "the name of a file about the whole class"
    if JOINER.search(student) or INVISIBLE.search(student):
        return "invisible characters in its name"
    if (plain := "".join(map(_as_typed, student))) != student:
        return f"letters in its name that only look like ASCII; nearest: {plain}"
    return problem_of_part(student)


def _as_typed(letter: str) -> str:
    """Return the ASCII letters that a full-width letter, a ligature, or the like stands for."""
    plain = unicodedata.normalize("NFKC", letter)
    return plain if plain.isascii() else letter


def normalized(text: str) -> str:
    """Return a name in Unicode's composed form (NFC)."""
    return unicodedata.normalize("NFC", text)


def key_of(path: str) -> str:
    """Return a key that is equal for names that some disk treats as one."""
    return normalized(normalized(path).casefold())
