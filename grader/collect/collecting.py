"""Collect one source: every file is either taken or listed with the reason why not."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from grader.collect import exchange, homes, store
from grader.collect.layouts import Claim, layout_of
from grader.collect.sources import File, FileRefused, Folder, Source, opened
from grader.collect.which import Labs
from grader.course import Course, Submission, receipts
from grader.course.receipts import Receipt
from grader.course.roster import Roster, people
from grader.course.times import now
from grader.gradebook.records import gradebook
from grader.report.policy import Attempts, attempts_of, to_grade
from labcore.errors import LabError

MOST_FILES = 500  # of one student
MOST_BYTES = 100_000_000  # of one student's notebooks
BEFORE = "received before the version to grade; if it was submitted again, pass --received TIME"
PACKED = (".zip", ".tar", ".gz", ".tgz", ".bz2", ".xz", ".7z", ".rar", ".zst")


@dataclass(frozen=True)
class CollectOptions:
    """The options of `lab collect`.

    Attributes:
        lab: the only lab to collect.
        received: the time of receipt for all submissions.
        keep_times: whether to trust the files' own times.
        as_is: whether folder names are ids, of students who may not be on the roster.
        below: the folder below each home to collect from, in a folder of homes.
    """

    lab: str | None = None
    received: datetime.datetime | None = None
    keep_times: bool = False
    as_is: bool = False
    pattern: str | None = None
    below: str | None = None


@dataclass(frozen=True)
class CollectedFile:
    """One file of the source, in the table.

    Attributes:
        verdict: refused, new, same, or other: kept, but not the one to grade.
        when: time of receipt.
    """

    file: str
    student: str = ""
    lab: str = ""
    verdict: str = "refused"
    why: str = ""
    when: str = ""


@dataclass(frozen=True)
class _Version:
    file: File
    receipt: Receipt
    why: str


def collect(course: Course, location: str, options: CollectOptions) -> list[CollectedFile]:
    """Collect from a path, or from the exchange.

    Args:
        course: the course.
        location: the path, or the word "exchange".
        options: the command's options.

    Raises LabError for the source as a whole; a problem with one student does not stop the others.
    """
    with gradebook(course) as book:
        roster = Roster(people(book))
    if not roster.people and not options.as_is:
        raise LabError("the roster is empty: fill it with `lab roster import students.csv`, or "
                       "pass --as-is to take folder names as the students' ids")
    with course.locked(), _source(course, location, roster, options) as source:
        files = source.files()
        lines, accepted = _assign_owners(source, files, roster, options)
        versions, refused = _store_versions(course, source, accepted, options)
        return lines + refused + _register_versions(course, versions, options)


@contextlib.contextmanager
def _source(course: Course, location: str, roster: Roster,
            options: CollectOptions) -> Iterator[Source]:
    path = Path(location)
    if options.below is not None:
        if options.pattern or options.keep_times:
            flag = "--pattern" if options.pattern else "--keep-times"
            raise LabError(f"--below takes no {flag}: a home says whose it is, and its file "
                           "system says when")
        labs = [options.lab] if options.lab else course.labs()
        yield homes.Homes(path, options.below, labs)
        return
    if location == "exchange" or exchange.is_exchange(path):
        if options.pattern:
            raise LabError("--pattern is for flat folders; the exchange has its own naming")
        yield exchange.Inbound(exchange.inbound(course.settings(), location),
                               {student: student for student in roster.ids})
        return
    with opened(path) as source:
        if options.keep_times and not isinstance(source, Folder):
            raise LabError("--keep-times is for folders: the times in an LMS's archive are those "
                           "of its creation; pass --received TIME for when it was closed")
        yield source


def _assign_owners(source: Source, files: list[File], roster: Roster, options: CollectOptions
                   ) -> tuple[list[CollectedFile], list[tuple[File, Claim]]]:
    """Return the files refused by name, and the notebooks with their owners."""
    lines, notebooks = [], []
    for file in files:
        kind = "." + file.path.lower().rpartition(".")[2]
        if kind in PACKED and not file.problem:
            file = dataclasses.replace(file, problem="an archive inside: only notebooks are "
                                                     "accepted")
        if file.problem:
            lines.append(CollectedFile(file.path, why=file.problem))
        elif kind == ".ipynb":
            notebooks.append(file)
    claims = _claims(source, notebooks, roster, options)
    called, count = defaultdict(set), Counter()
    for claim in claims.values():
        if not claim.problem:
            called[claim.student].add(claim.named_as)
            count[claim.student] += 1
    accepted = []
    for file in notebooks:
        claim = claims[file.path]
        problem = claim.problem
        if not problem and len(called[claim.student]) > 1:
            problem = f"more than one may be {claim.student}: {', '.join(called[claim.student])}"
        if not problem and count[claim.student] > MOST_FILES:
            problem = f"{count[claim.student]} notebooks; at most {MOST_FILES} are read"
        if problem:
            lines.append(CollectedFile(file.path, claim.student, why=problem))
        else:
            accepted.append((file, claim))
    return lines, accepted


def _claims(source: Source, notebooks: list[File], roster: Roster, options: CollectOptions
            ) -> dict[str, Claim]:
    """Return the claim about each notebook's owner, by path."""
    if isinstance(source, exchange.Inbound):
        layout = exchange.layout(roster, options.as_is)
    elif isinstance(source, homes.Homes):
        layout = homes.layout(roster, options.as_is)
    else:
        layout = layout_of([file.path for file in notebooks], roster, as_is=options.as_is,
                           pattern=options.pattern)
    claims = {file.path: layout(file.path) for file in notebooks}
    if isinstance(source, exchange.Inbound):  # before anything counts as this student's
        claims = {path: source.with_owner_checked(path, claim) for path, claim in claims.items()}
    return claims


def _store_versions(course: Course, source: Source, accepted: list[tuple[File, Claim]],
                    options: CollectOptions) -> tuple[list[_Version], list[CollectedFile]]:
    """Store all notebooks in received/, one at a time to save memory."""
    labs, bytes_of, moment = Labs(course), Counter(), options.received or now()
    versions, lines = [], []
    for file, claim in accepted:
        try:
            if bytes_of[claim.student] > MOST_BYTES:
                raise FileRefused(f"more than {MOST_BYTES / 1e6:.0f} MB of {claim.student}")
            content = source.read(file)
            bytes_of[claim.student] += len(content)
            lab = labs.find(content, claim.name, options.lab)
            if isinstance(source, homes.Homes):
                homes.require_changed(lab, content)
            when, said_by, why = _when(source, file, options, moment)
        except (FileRefused, LookupError) as error:
            lines.append(CollectedFile(file.path, claim.student, why=str(error)))
            continue
        digest = store.store_version(Submission(course, lab, claim.student), content)
        versions.append(_Version(file, Receipt(
            claim.student, lab, digest, when.isoformat(), said_by, _source_key(source, file, claim),
            claim.name, claim.serial or int(claim.name == f"{lab}.ipynb"), claim.late),
            why or "the LMS calls it late" * claim.late))
    return versions, lines


def _when(source: Source, file: File, options: CollectOptions, moment: datetime.datetime
          ) -> tuple[datetime.datetime, str, str]:
    if options.received:
        return moment, "--received", ""
    if isinstance(source, exchange.Inbound):
        return source.when(file, options.keep_times)
    if isinstance(source, homes.Homes):
        return source.when(file)
    if options.keep_times and file.changed:
        return file.changed, "--keep-times: the file's own time", ""
    return moment, "when it was collected", ""


def _source_key(source: Source, file: File, claim: Claim) -> str:
    if isinstance(source, exchange.Inbound):
        return file.path.split("/")[0]
    return f"canvas {claim.serial}" if claim.serial else ""


def _register_versions(course: Course, versions: list[_Version], options: CollectOptions
                       ) -> list[CollectedFile]:
    """Add receipts for new versions, and put the version to grade into submitted/."""
    policy = attempts_of(course.settings())
    by_lab: dict[tuple[str, str], list[_Version]] = defaultdict(list)
    for version in versions:
        by_lab[version.receipt.student, version.receipt.lab].append(version)
    lines: list[CollectedFile] = []
    for (student, lab), group in sorted(by_lab.items()):
        try:
            lines += _register_group(Submission(course, lab, student), group, options, policy)
        except (LabError, OSError) as error:
            lines += [CollectedFile(version.file.path, student, lab, why=str(error))
                      for version in group]
    return lines


def _register_group(submission: Submission, group: list[_Version], options: CollectOptions,
                    policy: Attempts) -> list[CollectedFile]:
    course, lab, student = submission.course, submission.lab, submission.student
    newest = max(version.receipt.order for version in group)
    digests = {version.receipt.digest for version in group if version.receipt.order == newest}
    if len(digests) > 1:
        why = (f"{len(group)} notebooks of {lab}, and nothing says which is newer: leave one, as "
               f"{lab}.ipynb")
        return [CollectedFile(version.file.path, student, lab, why=why) for version in group]
    store.register(submission)
    known = {(receipt.digest, receipt.source): receipt
             for receipt in receipts.read(course).get((student, lab), [])}
    added = set()
    explicit = bool(options.received or options.keep_times)
    for version in sorted(group, key=lambda version: version.receipt.order):
        key = version.receipt.digest, version.receipt.source
        if key not in known or (explicit and known[key].when != version.receipt.when):
            receipts.add(course, version.receipt)
            known[key] = version.receipt
            added.add(key)
    chosen = to_grade(policy, receipts.read(course)[student, lab]).digest
    store.submit_version(dataclasses.replace(submission, version=chosen))
    return [_line(version, known, added, chosen, version.receipt.order == newest)
            for version in group]


def _line(version: _Version, known: dict, added: set, chosen: str,
          is_newest: bool) -> CollectedFile:
    receipt = version.receipt
    key = receipt.digest, receipt.source
    verdict = "other" if receipt.digest != chosen else "new" if key in added else "same"
    # An LMS's archive of before, or a student who went back to that version: nothing tells.
    came_before = (verdict == "other" and is_newest and key not in added
                   and not receipt.source)
    return CollectedFile(version.file.path, receipt.student, receipt.lab, verdict,
                         "; ".join(filter(None, [version.why, BEFORE * came_before])),
                         known[key].when)
