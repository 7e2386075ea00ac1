"""Targets: for each reader, its inputs, and the errors it may raise. Anything else is a bug.

An input is made from a seed, so a failure is had again by its number: TARGETS[name].make(seed).
"""

from __future__ import annotations

import json
import struct
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from grader.collect import given
from grader.collect.layouts import layout_of
from grader.collect.which import is_untouched
from grader.contest import attempts
from grader.course import Course, groups
from grader.course.roster import Person, Roster, read_file
from grader.run.attempt import Attempt, DamagedAttempt
from grader.run.copies import merged
from grader.run.rebuild import Unusable, parse, rebuild
from labcore.errors import LabError
from labkit.check import allocation, options, torchrun, wire
from labkit.check.job import resolve
from labkit.check.measure import printed, read
from labkit.contest.contests import pipelines
from labkit.contest.declaration import Disqualified
from minimegatron.arguments.parse import build_parser
from tests.fuzz.hostile import TEXTS, anything, changed, spoilt, words
from tests.grader.small_lab import answered, source
from warmranks.broker import BadMessage, Broker

RELEASE = source()
NOTEBOOK = json.loads(json.dumps(answered(RELEASE)))
MARKS = ("cells", "metadata", "nbgrader", "grade_id", "source", "cell_type", "batch", "script",
         "batch-check", "code", "markdown", "nbformat", "%%writefile a")
ATTEMPT = json.loads(Attempt("s", "l", "d", "e", "graded", scores={"a": 1.0}, unscored=("b",),
                             notes=("n",), notebook={"cells": []}).dumps())
FLAGS = ("--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 64 --lr 1e-3 "
         "--max-position-embeddings 64 --micro-batch-size 4 --train-iters 5 --data-path x "
         "--vocab-file v --merge-file m")
MORE = (*build_parser()._option_string_actions, "virtual:v100", "interleaved", "zb-h1", "x.py",
        "1-1", "@x", "E(t|)*3L", "full")
TORCHRUN = ("--nnodes", "--nproc_per_node", "--node-rank", "--master_addr", "--master-port",
            "--rdzv_endpoint", "--rdzv-backend", "c10d", "slurmnode1:29500", "[::1]:6000",
            "--standalone", "-m", "x/pretrain_gpt.py")
LAUNCH = {"program": "torchrun",
          "arguments": ["--nnodes", "2", "x/pretrain_gpt.py", *FLAGS.split()],
          "step": 0, "task": 0, "host": "slurmnode1", "background": False,
          "variables": {"RANK": "0", "WORLD_SIZE": "2", "PET_NNODES": "2"}}
RECORD = {"components": [{"nodes": "2"}], "notes": ["a note"], "exit": 0, "output": "x\n",
          "launches": [LAUNCH, {**LAUNCH, "task": 1, "host": "slurmnode2"},
                       {**LAUNCH, "program": "python", "step": -1,
                        "arguments": ["-u", "pretrain_gpt.py", *FLAGS.split()]}]}
SBATCH = (b"#!/bin/bash\n#SBATCH --nodes=2 -n4 # x\n#SBATCH --gres=gpu:v100:2 --time '1'\n"
          b"#SBATCH hetjob\n#SBATCH -N1\nsrun x\n")
ESTIMATE = {"card": "c", "seconds_per_iteration": 1.0, "teraflops_per_gpu": 1.0, "fits": True,
            "share_of_peak": 0.1, "communication": 0, "bubble": 0.0, "parameters": 1,
            "memory": [{"total": 1.0, "stage": 0, "card": "c", "capacity": 1}]}
SLURM = ("--nodes", "-N", "-n4", "--nodelist", "a[1-9,3]b,c", "--ntask", "-lu", "--export", "x[1-")
CODE = ("def f(a):", "    return a", "%%writefile x\na", "!ls", "await x", "import *", "a = (",
        "'''", "if 1:\n\tx\n        y", "%%bash", "f'{", "lambda: (yield)", "# \\N{BULLET}",
        "def g(): nonlocal x", "from __future__ import annotations", "return", "x: int = 1")
PIECES = (b"[" * 3000, b"\xff", b"1e999", b'"\\ud800"', b"NaN", b"9" * 5000, b"null", b"-0")
PLAIN = {"a": [1, 2.5, (None, True), "x"], 3: {"b": float("nan")}}
CODED = json.loads(wire.dumps(PLAIN)) | {}
ARRAY = {"array": {"dtype": "<f8", "shape": [1], "data": "AAAAAAAA8D8="}}

PIPELINE = {"stages": 2, "micro_batches": 2, "chunks": [1, 2], "forward": [1, 2],
            "backward": [2, 1], "weight": [1, 1], "link": 0.5, "activation": [10, 10],
            "memory": [20, 15]}
SCHEDULES = [["F0 F1 B0 B1", "F0 B0 F1 B1"], [["F0", "B0", "W0", "F1", "B1", "W1"]] * 2,
             ["F0 F0.1 B0.1 B0 F1 F1.1 B1.1 B1"] * 2]
RANKS = {"do": "call", "number": 0, "op": "send", "group": [0, 1], "peer": 1, "key": "1", "tag": 0,
         "room": 4, "flops": 1.0, "sizes": [4]}
PLAYED = {"attempts": [{"digest": "d", "received": "2026-01-01T00:00:00+00:00", "played_at": "",
                        "made_with": "m", "reason": "",
                        "outcomes": [{"case": "even 1", "group": "even", "score": 0.5, "note": "",
                                      "kind": "", "reason": "", "hint": ""}]}], "refused": ""}


@dataclass(frozen=True)
class Target:
    """`inputs` makes an input; `run` may return, or raise one of `declared`."""

    inputs: Callable[[Random], Any]
    run: Callable[[Any], object]
    declared: tuple[type[BaseException], ...]

    def make(self, seed: int) -> Any:
        return self.inputs(Random(seed))


def hostile_json(sound: Any, names: Sequence[str], *pieces: bytes) -> Callable[[Random], bytes]:
    """Bytes: changed, spoilt, or no kin of `sound` at all."""
    def make(random: Random) -> bytes:
        kind = random.randrange(5)
        if kind == 0:
            return dumped(anything(random, names))
        if kind == 1:
            return spoilt(random, dumped(sound), (*PIECES, *pieces))
        return dumped(changed(random, sound, names))

    return make


def dumped(value: Any) -> bytes:
    return json.dumps(value).encode("utf-8", "surrogatepass")


def _notebook(content: bytes) -> None:
    result, notes = rebuild(RELEASE, parse(content, "x.ipynb"))
    assert [cell.cell_type for cell in result.cells] == [cell.cell_type for cell in RELEASE.cells]
    json.dumps(result).encode()  # it can be kept, and nothing in it is half a character
    assert all(isinstance(note, str) for note in notes)


def _record(record: Any) -> None:
    job = resolve(record)
    assert len(job.runs) <= 64 and all(len(problem) <= 1000 for problem in job.problems)
    assert all(run.world_size >= 1 for run in job.runs)
    wire.dumps(list(job.problems))


def _attempt(content: bytes) -> None:
    attempt = Attempt.loads(content)
    assert Attempt.loads(attempt.dumps()) == attempt


def _value(content: bytes) -> None:
    value = wire.loads(content)
    again = wire.dumps(value)
    assert wire.dumps(wire.loads(again)) == again


def _command(given: list[str]) -> None:
    parsed = torchrun.parse(given, {"PET_NNODES": "2"})
    assert 1 <= parsed.nnodes * parsed.nproc_per_node <= torchrun.MOST_RANKS


def _slurm(given: list[str]) -> None:
    parsed, rest = options.parse(given, "srun")
    options.count(parsed.get("nodes"), 1)
    assert len(options.expand(parsed.get("nodelist", ""))) < 10**6 and isinstance(rest, list)


def _estimate(content: bytes) -> None:
    result = read(printed(0, content, ""), 1)
    assert result.peak_memory >= min(result.memory) and result.milliseconds > 0


def schedule(random: Random) -> Any:
    sound = random.choice(SCHEDULES)
    if random.random() < 0.2:
        return anything(random, ("F0", "B0.1"))
    return changed(random, sound, ("F0", "B0", "W1", "F0.1", "F1 B1", "B0 F0 F1 B1"))


def _schedule(answer: Any) -> None:
    assert 0 < pipelines.score(PIPELINE, answer).score <= 1


def _played(content: bytes) -> None:
    result = attempts.parsed(content)
    for attempt in result[0].values() if result else ():
        assert not attempt.outcomes or 1 <= attempt.points <= 100
        attempts.best([attempt], attempt.made_with)


def pieces(random: Random) -> tuple[list[str], str]:
    """Cells with one name, as a run."""
    texts = random.choices([*CODE, *TEXTS], k=random.randint(1, 6))
    if random.random() < 0.3:
        texts.append("".join(random.choices([*CODE, "\n", " "], k=5)))
    return texts, random.choice(["code", "markdown", "raw"])


def record(random: Random) -> Any:
    kind = random.randrange(5)
    if kind == 0:
        return anything(random, tuple(RECORD))
    if kind == 1:
        return changed(random, RECORD, (*TORCHRUN, *MORE, "python", "srun-refused"))
    started = [*words(random, TORCHRUN)[:random.choice([0, 2, 10])], "pretrain_gpt.py",
               *FLAGS.split(), *words(random, MORE)]
    return {**RECORD, "launches": [{**LAUNCH, "arguments": started}]}


def _ranks(fields: Any) -> None:
    """A rank's message to the broker, after an honest one and before another."""
    broker = Broker(2, most_calls=3)
    for rank, sent in ((0, {**RANKS, "number": 7}), (0, fields), (1, {**RANKS, "op": "barrier",
                                                                      "peer": None, "sizes": []})):
        text, part = json.dumps(sent).encode(), b"" if sent == {} else b"1234"
        if isinstance(sent, dict) and sent.get("sizes") == []:
            part = b""
        broker.exchange([(rank, struct.pack(">I", len(text)) + text + part)])
    assert all(call.size >= 0 for call in broker.calls) and broker.pending <= 12


ROSTER = Roster([Person("ada", "Ada", "Lovelace", "a@x", "101"), Person("grace", "Grace", "Hopper",
                                                                        "g@x", "102")])
ROSTERS = (b"id,first_name\nada,Ada\n", b"Student,ID,SIS Login ID,Section\nPoints Possible,,,\n"
           b'"Lovelace, Ada",101,a@x,S\n',
           b"First name,Last name,Email address,Groups\nA,B,a@x,G\n",
           b"Identifier,Full name,Email address\nParticipant 7,Ada Lovelace,a@x\n",
           b"Identifier,Username,Last modified (submission)\nParticipant 7,ada,"
           b'"Tuesday, 14 January 2025, 2:14 PM"\n',
           b"student,received\nada,2026-01-31 12:00 UTC\n", b"student,group\nada,A\ngrace,A\n")
PARTS = ("ada", "grace", "lovelaceada", "Ada Lovelace", "_101_5_", "_7_assignsubmission_file_", "/",
         "LATE", "00_welcome.ipynb", "Team-", "\u0301", "\u200d", "..", "anon_")


def hostile_path(random: Random) -> str:
    return "".join(random.choices([*PARTS, *TEXTS], k=random.randrange(1, 7)))


def _paths(paths: list[str]) -> None:
    """Whoever a path is said to be from is on the roster, or there is a reason."""
    read = layout_of(paths, ROSTER, as_is=False, pattern=None, groups=("Team",))
    for path in paths:
        claim = read(path)
        assert claim.problem or claim.student in ROSTER.ids


def _rosters(content: bytes) -> None:
    """Each reader takes the file or names what is wrong with it."""
    with tempfile.NamedTemporaryFile(suffix=".csv") as file:
        path = Path(file.name)
        path.write_bytes(content)
        problems = 0
        for read in (read_file, lambda path: given.participants(path, ROSTER), lambda path:
                     given.times(path, ROSTER), lambda path: groups.read_file(path, ROSTER),
                     lambda path: given.submission_times(path, ROSTER, "UTC", ())):
            try:
                read(path)
            except LabError:
                problems += 1
        if problems == 5:
            raise LabError("none of them takes it")


TARGETS = {
    "notebook": Target(hostile_json(NOTEBOOK, MARKS, b'{"cells":['), _notebook, (Unusable,)),
    "homes": Target(hostile_json(NOTEBOOK, MARKS, b'{"cells":['),
                    lambda content: is_untouched(Course(Path("/none")), "00_welcome", content),
                    ()),
    "paths": Target(lambda random: [hostile_path(random) for _ in range(4)], _paths, ()),
    "rosters": Target(lambda random: spoilt(random, random.choice(ROSTERS), (
        b",", b'"', b"\n", b";", b"\xff", b"\xff\xfe", b"\0", b"Section")), _rosters, (LabError,)),
    "copies": Target(pieces, lambda given: merged(*given).encode("utf-8", "surrogatepass"), ()),
    "record": Target(record, _record, (LabError,)),
    "torchrun": Target(lambda random: words(random, TORCHRUN), _command, (torchrun.BadCommand,)),
    "slurm": Target(lambda random: words(random, SLURM), _slurm, (options.BadOption,)),
    "directives": Target(
        lambda random: spoilt(random, SBATCH, (b"#SBATCH -N", b"'", b'"', b"\\", b"\r\n")),
        lambda text: allocation.directives(text.decode(errors="replace")), ()),
    "attempt": Target(hostile_json(ATTEMPT, (*ATTEMPT, "ungraded")), _attempt, (DamagedAttempt,)),
    "value": Target(hostile_json([CODED, ARRAY], ("dict", "tuple", "float", "array", "<f8", "|b1"),
                                 b'{"dict":[[1,2],[1,2]]}'), _value, (wire.CannotCross,)),
    "schedule": Target(schedule, _schedule, (Disqualified,)),
    "played": Target(hostile_json(PLAYED, (*PLAYED, *PLAYED["attempts"][0])), _played, ()),
    "ranks": Target(lambda random: changed(random, RANKS, (*RANKS, "recv", "all_reduce")),
                    _ranks, (BadMessage,)),
    "estimate": Target(hostile_json(ESTIMATE, tuple(ESTIMATE)), _estimate, (LabError,)),
}
