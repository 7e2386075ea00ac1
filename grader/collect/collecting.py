"""Collect one source: every file is either taken or listed with the reason why not."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from grader.collect import exchange, given, homes, store
from grader.collect.layouts import Claim, layout_of
from grader.collect.sources import File, FileRefused, Folder, Source, opened
from grader.collect.which import Labs, NotOfALab, is_untouched
from grader.course import Course, Submission, groups, receipts, unreadable
from grader.course.folder import COLLECTING
from grader.course.names import problem_of
from grader.course.receipts import Receipt
from grader.course.roster import Roster, people
from grader.course.times import now
from grader.course.unreadable import UnreadableFile
from grader.gradebook import decisions
from grader.gradebook.records import gradebook
from grader.report.policy import Attempts, attempts_of, to_grade
from labcore.errors import LabError

MOST_FILES = 500  # of one student
MOST_BYTES = 100_000_000  # of one student's notebooks
BEFORE = ("received before the version to grade; if it was submitted again, pass --received TIME "
          "--correct, and --student for this one only")
UNTOUCHED = "unchanged from the release"
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
        correct: whether the given times also replace those of versions that are known already.
        students: the only students to collect from; empty for all.
        worksheet: Moodle's grading worksheet of the assignment.
        times: a file with each student's time of receipt.
        zone: the time zone of the worksheet's times of submission; None to ignore them.
    """

    lab: str | None = None
    received: datetime.datetime | None = None
    keep_times: bool = False
    as_is: bool = False
    pattern: str | None = None
    below: str | None = None
    correct: bool = False
    students: tuple[str, ...] = ()
    worksheet: Path | None = None
    times: Path | None = None
    zone: str | None = None


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
    claim: Claim
    receipt: Receipt
    why: str


@dataclass(frozen=True)
class _Unread:
    """A student's file that is not taken, the reason, and the lab that it was meant for, if known.

    `counts` is whether its student meant to submit it, `advice` is for the instructor, and
    `is_another` is whether it is a notebook of another lab.
    """

    file: File
    claim: Claim
    why: str
    lab: str = ""
    counts: bool = True
    advice: str = ""
    is_another: bool = False


@dataclass(frozen=True)
class _Clock:
    """Determines when files came in.

    Attributes:
        moments: times of receipt by student, which the instructor gave in --times.
        submitted: times of submission by student, from Moodle's worksheet.
        moment: the time of everything else without a better one.
    """

    source: Source
    options: CollectOptions
    moments: Mapping[str, datetime.datetime]
    submitted: Mapping[str, datetime.datetime]
    moment: datetime.datetime

    def when(self, file: File, claim: Claim) -> tuple[datetime.datetime, str, str]:
        """Return a file's time, who said so, and a note. Raises FileRefused."""
        if claim.student in self.moments:
            return self.moments[claim.student], "--times", ""
        if claim.lms and claim.student in self.submitted:
            return self.submitted[claim.student], "Moodle's grading worksheet", ""
        if self.options.received:
            return self.moment, "--received", ""
        if isinstance(self.source, exchange.Inbound):
            return self.source.when(file, self.options.keep_times)
        if isinstance(self.source, homes.Homes):
            return self.source.when(file)
        if self.options.keep_times and file.changed:
            return file.changed, "--keep-times: the file's own time", ""
        given = "--times" if self.moments else "--worksheet" if self.submitted else ""
        note = f"no time in {given}: the time of collecting" if given else ""
        return self.moment, "when it was collected", note


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
    moments = given.times(options.times, roster) if options.times else {}
    submitted = given.submission_times(options.worksheet, roster, options.zone, moments
                                       ) if options.worksheet and options.zone is not None else {}
    with (course.locked("lab collect", COLLECTING),
          _source(course, location, roster, options) as source):
        files = source.files()
        gone = decisions.dropped(course)
        lines, accepted, others = _assign_owners(source, files, roster, gone,
                                                 groups.all_names(course), options)
        if options.students:
            lines = [line for line in lines if line.student in options.students]
            accepted = [one for one in accepted if one[1].student in options.students]
            others = [one for one in others if one.claim.student in options.students]
        labs = Labs(course)
        clock = _Clock(source, options, moments, submitted, options.received or now())
        versions, refused = _store_versions(course, source, labs, accepted, options, clock)
        versions, strays = _without_strays(versions, options)
        versions, rivals = _without_rivals(source, versions)
        refused += strays + rivals
        unread = _register_unreadable(course, labs, others + refused, versions, options, clock)
        return lines + unread + _register_versions(course, versions, options)


@contextlib.contextmanager
def _source(course: Course, location: str, roster: Roster,
            options: CollectOptions) -> Iterator[Source]:
    path = Path(location)
    if options.below is not None:
        if options.pattern or options.keep_times:
            flag = "--pattern" if options.pattern else "--keep-times"
            raise LabError(f"--below takes no {flag}: the home tells whose file it is, and its "
                           "file system tells when")
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
                           "of its creation; pass --received TIME, when the assignment closed")
        yield source


def _assign_owners(source: Source, files: list[File], roster: Roster, gone: Collection[str],
                   names: Collection[str], options: CollectOptions
                   ) -> tuple[list[CollectedFile], list[tuple[File, Claim]], list[_Unread]]:
    """Return the files refused by name, the notebooks with their owners, and the owners' other
    files."""
    lines, others = [], []
    claims = _claims(source, files, roster, options, names)
    called, called_by_any, count = defaultdict(set), defaultdict(set), Counter()
    for file in files:
        claim = claims[file.path]
        called_by_any[claim.student].add(claim.named_as)
        if claim.student in gone and not claim.problem:
            claims[file.path] = claim = dataclasses.replace(claim, problem=(
                f"{claim.student} has left the course; `lab roster restore {claim.student}`"))
        if _is_notebook(file) and not file.problem and not claim.problem:
            called[claim.student].add(claim.named_as)
            count[claim.student] += 1
    accepted = []
    for file in files:
        claim = claims[file.path]
        if why := file.problem or _not_a_notebook(file):
            owned = not claim.problem and len(called_by_any[claim.student]) == 1
            if owned and not problem_of(file.path.rpartition("/")[0] or "-"):
                others.append(_Unread(file, claim, why))
            elif file.problem or _is_packed(file):
                lines.append(CollectedFile(file.path, why=why))
            continue
        problem = claim.problem
        if not problem and len(called[claim.student]) > 1:
            problem = f"more than one may be {claim.student}: {', '.join(called[claim.student])}"
        if not problem and count[claim.student] > MOST_FILES:
            problem = f"{count[claim.student]} notebooks; at most {MOST_FILES} are read"
        if problem:
            lines.append(CollectedFile(file.path, claim.student, why=problem))
        else:
            accepted.append((file, claim))
    return lines, accepted, others


def _is_notebook(file: File) -> bool:
    return file.path.lower().endswith(".ipynb")


def _is_packed(file: File) -> bool:
    return file.path.lower().endswith(PACKED)


def _not_a_notebook(file: File) -> str:
    """Return what a file is instead of a notebook; empty for a notebook."""
    if _is_notebook(file):
        return ""
    if _is_packed(file):
        return "an archive inside: only notebooks are accepted"
    name = file.path.lower().rpartition("/")[2]
    if ".ipynb." in name:
        return f"its name ends in .{name.rpartition('.')[2]}: rename it so that it ends in .ipynb"
    ending = name.rpartition(".")[2] if "." in name else ""
    return (f"a .{ending} file" if ending else "a file without an ending") + ", not a notebook"


def _claims(source: Source, files: list[File], roster: Roster, options: CollectOptions,
            names_of_groups: Collection[str]) -> dict[str, Claim]:
    """Return the claim about each file's owner, by path."""
    notebooks = [file for file in files if _is_notebook(file) and not file.problem] or files
    if isinstance(source, exchange.Inbound):
        layout = exchange.layout(roster, options.as_is)
    elif isinstance(source, homes.Homes):
        layout = homes.layout(roster, options.as_is)
    else:
        layout = layout_of([file.path for file in notebooks], roster, as_is=options.as_is,
                           pattern=options.pattern, numbers=given.participants(
                               options.worksheet, roster) if options.worksheet else {},
                           groups=names_of_groups)
    claims = {file.path: layout(file.path) for file in files}
    if isinstance(source, exchange.Inbound):  # before anything counts as this student's
        claims = {path: source.with_owner_checked(path, claim) for path, claim in claims.items()}
    return claims


def _store_versions(course: Course, source: Source, labs: Labs,
                    accepted: list[tuple[File, Claim]], options: CollectOptions, clock: _Clock
                    ) -> tuple[list[_Version], list[_Unread]]:
    """Store all notebooks in received/, one at a time to save memory; return them, and those that
    cannot be taken."""
    bytes_of: Counter[str] = Counter()
    versions, unread = [], []
    for file, claim in accepted:
        try:
            if bytes_of[claim.student] > MOST_BYTES:
                raise FileRefused(f"more than {MOST_BYTES / 1e6:.0f} MB of {claim.student}")
            content = source.read(file)
            bytes_of[claim.student] += len(content)
            lab, note = labs.find(content, claim.name, options.lab, claim.folders)
            untouched = is_untouched(course, lab, content)
            if isinstance(source, homes.Homes) and untouched:
                unread.append(_Unread(file, claim, UNTOUCHED, counts=False))
                continue
            when, said_by, why = clock.when(file, claim)
        except (FileRefused, NotOfALab) as error:
            unread.append(_Unread(file, claim, str(error), getattr(error, "lab", ""),
                                  advice=getattr(error, "advice", ""),
                                  is_another=getattr(error, "is_another", False)))
            continue
        late = "the LMS calls it late" * claim.late
        why = "; ".join(filter(None, [why, note, UNTOUCHED * untouched, late]))
        owner = groups.owner_of(course, lab, claim.student)
        if owner != claim.student:
            why = "; ".join(filter(None, [f"from {claim.student}, for the group", why]))
        digest = store.store_version(Submission(course, lab, owner), content)
        versions.append(_Version(file, claim, Receipt(
            owner, lab, digest, when.isoformat(), said_by, _source_key(source, file, claim),
            claim.name, claim.serial or int(claim.name == f"{lab}.ipynb"), claim.late), why))
    return versions, unread


def _without_rivals(source: Source, versions: list[_Version]
                    ) -> tuple[list[_Version], list[_Unread]]:
    """Return the versions to take, and those of groups whose members have different ones at home.

    A notebook in a home is there whether or not its student wants to submit it for the group.
    """
    if not isinstance(source, homes.Homes):
        return versions, []
    of: dict[tuple[str, str], dict[str, str]] = defaultdict(dict)
    for one in versions:
        of[one.receipt.student, one.receipt.lab][one.claim.student] = one.receipt.digest
    taken, rivals = [], []
    for one in versions:
        digests = of[one.receipt.student, one.receipt.lab]
        if len(set(digests.values())) < 2:
            taken.append(one)
            continue
        rivals.append(_Unread(
            one.file, one.claim, f"{' and '.join(sorted(digests))} submit as a group, and their "
            "homes have different notebooks", one.receipt.lab, counts=False,
            advice=f"to take this one, add --student {one.claim.student}"))
    return taken, rivals


def _without_strays(versions: list[_Version], options: CollectOptions
                    ) -> tuple[list[_Version], list[_Unread]]:
    """Return the versions to take, and those of another lab than an LMS's archive is of.

    An archive is of one assignment. If most students submitted one lab, whoever submitted only
    another one uploaded a wrong file, and it is no attempt at that lab.
    """
    pairs = {(one.receipt.student, one.receipt.lab) for one in versions if one.claim.lms}
    counts = Counter(lab for _, lab in pairs).most_common()
    if options.lab or len(counts) < 2:
        return versions, []
    lab, most = counts[0]
    has = {student for student, one in pairs if one == lab}
    taken, strays = [], []
    for version in versions:
        own = version.receipt.lab
        if not version.claim.lms or own == lab:
            taken.append(version)
        elif 2 * most > len(pairs) and version.receipt.student not in has:
            strays.append(_Unread(
                version.file, version.claim, f"its cells are {own}'s, but most submissions to this "
                f"assignment are {lab}'s, so it looks like the wrong file", lab,
                advice=f"if it is meant for {own}, collect it with --lab {own}"))
        else:
            note = f"other files in this archive are {lab}'s; is it meant for {own}?"
            taken.append(dataclasses.replace(
                version, why="; ".join(filter(None, [version.why, note]))))
    return taken, strays


def _register_unreadable(course: Course, labs: Labs, unread: list[_Unread],
                         versions: list[_Version], options: CollectOptions, clock: _Clock
                         ) -> list[CollectedFile]:
    """Note what came in and is no notebook of a lab; return its lines of the table.

    A file beside a notebook that was taken is no submission of its own.
    """
    taken = {(version.receipt.student, version.receipt.lab) for version in versions}
    taken_of = {student for student, _ in taken}
    seen = {lab for _, lab in taken}
    files_of = Counter([one.claim.student for one in [*unread, *versions]])
    lines = []
    for one in unread:
        file, claim = one.file, one.claim
        name = re.sub(r"(?i)(\.ipynb)?\.\w+$", ".ipynb", claim.name)
        named = labs.named(name, claim.folders)
        lab = one.lab or options.lab or (named[0] if len(named) == 1 else "")
        if not lab and claim.lms and len(seen) == 1:  # an LMS's archive is of one assignment
            lab = next(iter(seen))
        owner = groups.owner_of(course, lab, claim.student)
        is_beside = (owner, lab) in taken or (not lab and claim.student in taken_of)
        # --lab alone is also how one lab is picked out of a folder of many.
        is_meant = lab in named or claim.lms or (
            lab == options.lab and files_of[claim.student] == 1 and not one.is_another)
        if not _is_notebook(file) and not _is_packed(file) and (is_beside or not is_meant):
            continue
        when = ""
        if (lab and one.counts and is_meant and not is_beside
                and not (options.lab and lab != options.lab)):
            with contextlib.suppress(FileRefused):  # it disappeared: then it did not come in
                when = clock.when(file, claim)[0].isoformat()
                when = unreadable.add(course, UnreadableFile(
                    owner, lab, file.path, when, one.why)).when
        why = one.why + f" ({one.advice})" * bool(one.advice)
        lines.append(CollectedFile(file.path, claim.student, lab, why=why, when=when))
    return lines


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
    for version in sorted(group, key=lambda version: version.receipt.order):
        key = version.receipt.digest, version.receipt.source
        if key not in known or (options.correct and known[key].when != version.receipt.when):
            receipts.add(course, version.receipt)
            known[key] = version.receipt
            added.add(key)
    decided = decisions.versions(course).get(submission.key, decisions.Versions())
    receipt = to_grade(policy, receipts.read(course)[student, lab], decided)
    chosen = receipt.digest if receipt else ""
    if receipt:
        store.submit_version(dataclasses.replace(submission, version=chosen))
    return [_line(version, known, added, chosen, version.receipt.order == newest, decided)
            for version in group]


def _line(version: _Version, known: dict, added: set, chosen: str, is_newest: bool,
          decided: decisions.Versions) -> CollectedFile:
    receipt = version.receipt
    key = receipt.digest, receipt.source
    verdict = "other" if receipt.digest != chosen else "new" if key in added else "same"
    # An LMS's archive of before, or a student who went back to that version: nothing tells.
    reason = decided.why_not(receipt.digest)
    came_before = (verdict == "other" and is_newest and key not in added
                   and not receipt.source and not reason)
    return CollectedFile(version.file.path, receipt.student, receipt.lab, verdict,
                         "; ".join(filter(None, [version.why, reason, BEFORE * came_before])),
                         known[key].when)
