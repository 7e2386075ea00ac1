"""The files that a lab's answers write into mytrainer/, with the solutions in them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath

from labkit.build.lab import Lab, Role
from labkit.build.stubs import answered

FOLDER = "mytrainer"
# A lab that extends a file which an earlier one has students write has them write it here, so that
# the earlier one keeps working until theirs is right.
FOLDERS = (FOLDER, f"{FOLDER}/new")
WORKED = f"notebooks/worked/{FOLDER}"  # `lab mytrainer --worked` copies from here


def worked_pieces(lab: Lab) -> dict[str, str]:
    """Return the text of each worked file, by its path in the checkout."""
    texts = {}
    for answer in lab.of(Role.ANSWER):
        path = PurePosixPath(answer.path or "")
        if str(path.parent) in FOLDERS:
            _, _, text = answered(answer.source).partition("\n")  # the first line is %%writefile
            texts[f"{WORKED}/{path.relative_to(FOLDER)}"] = text.strip("\n") + "\n"
    return texts


def written_twice(labs: Sequence[Lab]) -> list[str]:
    """Return an error for each file of mytrainer/ that two labs write: which one is worked?"""
    lab_of: dict[str, Lab] = {}
    errors = []
    for lab in labs:
        for path in worked_pieces(lab):
            if path in lab_of:
                name = PurePosixPath(path).relative_to(WORKED)
                errors.append(f"solutions/{lab.path.name}: {FOLDER}/{name} is already an answer of "
                              f"solutions/{lab_of[path].path.name}; give it another name")
            lab_of[path] = lab
    return errors
