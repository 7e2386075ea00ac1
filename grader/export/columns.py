"""Choose the column of the LMS's file for each lab's scores."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import nbformat

from grader.course import Course
from grader.export.layout import Column, LmsFile
from labcore.errors import LabError
from labcore.terminal import visible

MOST_SHOWN = 30


def chosen(layout: LmsFile, labs: Mapping[str, Sequence[str]], requested: Sequence[str],
           assignments: Sequence[str]) -> dict[str, Column]:
    """Return the column of each lab that has one.

    Args:
        layout: the LMS's file.
        labs: the possible names of the assignment by lab of the course.
        requested: the labs that the user named; empty for all that have a column.
        assignments: the values of --column, `LAB=TITLE`.

    Raises:
        LabError: a named lab has no column, a column could be of two labs, or none is found.
    """
    named = dict(_column_option(layout, labs, text) for text in assignments)
    if layout.one_assignment:
        return _only(layout, list(requested) or list(named), named)
    columns = {}
    for lab in requested or labs:
        if lab in named:
            columns[lab] = named[lab]
            continue
        fitting = [column for column in layout.columns
                   if column not in named.values() and _fits(column.title, labs[lab])]
        if len(fitting) > 1:
            raise LabError(f"{layout.sheet.path}: {lab} may be any of these columns: "
                           f"{_titles(fitting)}; choose one with --column {lab}=TITLE")
        if fitting:
            columns[lab] = fitting[0]
        elif requested:
            raise LabError(f"{layout.sheet.path} has no column that is called {lab}: choose one "
                           f"with --column {lab}=TITLE; there are {_titles(layout.columns)}")
    for lab, column in columns.items():
        if others := [other for other in columns if other != lab and columns[other] == column]:
            raise LabError(f"{layout.sheet.path}: column {visible(column.heading)!r} may be of "
                           f"{lab} or {others[0]}: name the lab with --lab")
    if not columns:
        raise LabError(f"{layout.sheet.path}: no column is called like a lab: choose one with "
                       f"--column LAB=TITLE; there are {_titles(layout.columns)}")
    return columns


def names_of(course: Course, lab: str) -> list[str]:
    """Return the names that an assignment of this lab may have: the lab's name and its heading.

    Args:
        course: the course.
        lab: the lab's name.
    """
    path = course.notebook("release", lab)
    if not path.is_file():
        return [lab]
    first = next((cell.source for cell in nbformat.read(path, as_version=4).cells
                  if cell.cell_type == "markdown"), "")
    heading = re.match(r"#\s+(.+)", first)
    return [lab, heading[1].strip()] if heading else [lab]


def _only(layout: LmsFile, labs: list[str], named: Mapping[str, Column]) -> dict[str, Column]:
    if len(set(labs)) != 1:
        raise LabError(f"{layout.sheet.path} is the worksheet of one assignment, and does not say "
                       f"of which: name its lab with --lab" + (
                           f"; you named {', '.join(labs)}" if labs else ""))
    return {labs[0]: named.get(labs[0], layout.columns[0])}


def _column_option(layout: LmsFile, labs: Mapping[str, Sequence[str]], text: str) -> tuple[str,
                                                                                           Column]:
    lab, equals, title = text.partition("=")
    if not equals or lab not in labs:
        raise LabError(f"--column {text!r}: give LAB=TITLE, where LAB is one of "
                       + ", ".join(labs))
    fitting = [column for column in layout.columns
               if title.strip() in (column.heading, column.title, column.number) and title.strip()]
    if len(fitting) != 1:
        which = "no column is" if not fitting else f"{len(fitting)} columns are"
        raise LabError(f"--column {text!r}: {which} called {title.strip()!r}; there are "
                       f"{_titles(layout.columns)}")
    return lab, fitting[0]


def _fits(title: str, names: Sequence[str]) -> bool:
    """Return whether a title equals one of the names or contains the lab's name.

    Args:
        title: the column's title.
        names: the lab's possible names; its own name first.
    """
    letters = _letters(title)
    return _letters(names[0]) in letters or letters in map(_letters, names)


def _letters(text: str) -> str:
    return "".join(letter for letter in text.casefold() if letter.isalnum())


def _titles(columns: Sequence[Column]) -> str:
    shown = [repr(visible(column.heading)) for column in columns[:MOST_SHOWN]]
    more = [f"and {len(columns) - MOST_SHOWN} more"] * (len(columns) > MOST_SHOWN)
    return ", ".join(shown + more) or "none"
