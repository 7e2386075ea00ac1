"""The lab that is attacked, and the honest students who hand it in beside the attackers."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from nbformat import v4

from tests.attacks.attack import ROOT, Attack, Notebook
from tests.grader import small_lab
from tests.grader.small_lab import cell, marks

LAB = "91_attacked"
MOST = 5.0  # of double and triple
HIDDEN, SOLUTION, PEER = "HIDDEN-TEST-CANARY", "SOLUTION-CANARY", "PEER-CANARY"

DOUBLE = f"""def double(x):
    ### BEGIN SOLUTION
    return 2 * x  # {SOLUTION}
    ### END SOLUTION"""
DOUBLE_CHECK = f"""assert double(2) == 4
### BEGIN HIDDEN TESTS
assert double(21) == 42  # {HIDDEN}
### END HIDDEN TESTS"""
TRIPLE = f"""def triple(x):
    ### BEGIN SOLUTION
    return 3 * x  # {SOLUTION}
    ### END SOLUTION"""
TRIPLE_CHECK = f"""check.function(triple, cases=[{{"x": 1}}, {{"x": 5}}], expected=[3, 15])
### BEGIN HIDDEN TESTS
check.function(triple, cases=check.draw(20, x=range(1000)), expected=lambda x: 3 * x)  # {HIDDEN}
### END HIDDEN TESTS"""

JOB = """%%writefile code/mine.sh
### BEGIN SOLUTION
#!/bin/bash
### END SOLUTION"""
FLAGS = ("--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 64 "
         "--max-position-embeddings 64 --global-batch-size 16 --train-iters 1 --device cpu "
         "--lr 1e-4 --data-path data/x --vocab-file data/v.json --merge-file data/m.txt")
JOB_CHECK = f"""job = check.script("code/mine.sh", only=["--micro-batch-size"], given={{
    "nodes": 2, "runs": [{{"nodes": 2, "ranks_per_node": 2, "trainer": "code/pretrain_gpt.py",
                          "flags": "{FLAGS}"}}]}})
### BEGIN HIDDEN TESTS
check.that(job.flags.micro_batch_size == 4, "Micro-batches of 4.")  # {HIDDEN}
### END HIDDEN TESTS"""

ROUNDS = """def rounds():
    ### BEGIN SOLUTION
    return 3
    ### END SOLUTION"""
ROUNDS_CHECK = f"""import math
assert sum(1 for turn in range(rounds())) == 3
### BEGIN HIDDEN TESTS
assert math.factorial(rounds()) == 6  # {HIDDEN}
### END HIDDEN TESTS"""

PARTED = """def halve(x):
    ### BEGIN SOLUTION
    return x // 2
    ### END SOLUTION"""
PARTED_CHECK = f"""with check.parts():
    with check.part(1, "even numbers"):
        check.function(halve, cases=[{{"x": 2}}, {{"x": 8}}], expected=[1, 4])
    with check.part(1, "odd numbers"):
        check.function(halve, cases=[{{"x": 3}}, {{"x": 9}}], expected=[1, 4])
        ### BEGIN HIDDEN TESTS
        check.that(check.call(halve, 41) == 20, "Round down.")  # {HIDDEN}
        ### END HIDDEN TESTS"""

BUBBLE = """def bubble(p, m):
    ### BEGIN SOLUTION
    return (p - 1) / (m + p - 1)
    ### END SOLUTION"""
BUBBLE_CHECK = f"""check.function(bubble, cases=[{{"p": 4, "m": 1}}], expected=[0.75])
### BEGIN HIDDEN TESTS
check.function(bubble, cases=check.draw(20, p=range(2, 9), m=range(1, 65)),
               expected=lambda p, m: (p - 1) / (m + p - 1))  # {HIDDEN}
### END HIDDEN TESTS"""

# The sandbox of a notebook with such a check costs seconds: only attacks on ranks have it.
RANKED = """def passed_on(tensor):
    ### BEGIN SOLUTION
    import torch
    import torch.distributed as dist

    rank, ranks = dist.get_rank(), dist.get_world_size()
    received = torch.empty_like(tensor)
    sending = dist.isend(tensor, (rank + 1) % ranks)
    dist.recv(received, (rank - 1) % ranks)
    sending.wait()
    return received
    ### END SOLUTION
### BEGIN SOLUTION
ANSWERED = True
### END SOLUTION"""
RANKED_DRIVER = """def passed(values):
    import torch

    return passed_on(torch.tensor(values, dtype=torch.float64)).tolist()"""
RANKED_CHECK = f"""check.value(ANSWERED, True)
runs = check.ranks(passed, cases=[{{"values": check.by_rank([[1.0], [2.0], [4.0]])}}], ranks=3,
                   expected=[[[4.0], [1.0], [2.0]]])
### BEGIN HIDDEN TESTS
runs += check.ranks(passed, ranks=3, cases=check.draw(
    2, values=check.for_each_rank(check.between(1, 9), [2])), expected=lambda ranks, values: [
        values[rank - 1] for rank in range(ranks)])  # {HIDDEN}
### END HIDDEN TESTS
for run in runs:
    for rank in range(3):
        calls = [(call.op, call.peer) for call in run.calls(rank)]
        check.that(calls == [("send", (rank + 1) % 3), ("recv", (rank - 1) % 3)],
                   "Send to the right.")"""

MASK = '\ncheck.mask("minimegatron.formulas", "pipeline_schedules.gpipe")'

RIGHT_DOUBLE = "def double(x):\n    return 2 * x"
RIGHT_TRIPLE = "def triple(x):\n    return 3 * x"
PEERS = {"aaron": 5.0, "mona": 3.0, "zoe": 5.0}  # in the order of grading: first, between, last


def source(whole: bool, ranked: bool) -> Any:
    """Return an instructor's source.

    With `whole` it includes checks that only our grader has, and with `ranked` the one on ranks.
    """
    notebook = v4.new_notebook(cells=[
        v4.new_markdown_cell("# A lab that is attacked"),
        cell(small_lab.SETUP if whole else "import math", ["setup"]),
        cell("from labkit import check" + MASK * whole, ["check-setup"]),
        cell(DOUBLE, **marks("double", solution=True, locked=False)),
        cell(DOUBLE_CHECK, **marks("double-check", grade=True, points=3)),
        cell(TRIPLE, **marks("triple", solution=True, locked=False)),
        cell(TRIPLE_CHECK, **marks("triple-check", grade=True, points=2)),
        v4.new_markdown_cell("*Your answer here.*", metadata=marks(
            "why", grade=True, solution=True, locked=False, points=0)),
    ])
    if whole:
        notebook.cells += [
            cell(ROUNDS, **marks("rounds", solution=True, locked=False)),
            cell(ROUNDS_CHECK, **marks("rounds-check", grade=True, points=2)),
            cell(BUBBLE, **marks("bubble", solution=True, locked=False)),
            cell(BUBBLE_CHECK, **marks("bubble-check", grade=True, points=2)),
            cell(JOB, **marks("job", solution=True, locked=False)),
            cell(JOB_CHECK, **marks("job-check", grade=True, points=2)),
            cell(PARTED, **marks("halve", solution=True, locked=False)),
            cell(PARTED_CHECK, **marks("halve-check", grade=True, points=2))]
    if ranked:
        notebook.cells += [
            cell(RANKED, **marks("ranked", solution=True, locked=False)),
            cell(RANKED_DRIVER, ["driver"]),
            cell(RANKED_CHECK, **marks("ranked-check", grade=True, points=2))]
    notebook.metadata.kernelspec = {"name": "python3", "display_name": "Python 3",
                                    "language": "python"}
    return notebook


def find(notebook: Notebook, name: str) -> dict[str, Any]:
    """The cell of that grade_id."""
    return next(cell for cell in notebook["cells"]
                if cell["metadata"].get("nbgrader", {}).get("grade_id") == name)


def answered(release: Notebook, double: str, triple: str, rounds: str = "", job: str = "",
             parted: str = "", bubble: str = "", ranked: str = "") -> Notebook:
    notebook = json.loads(json.dumps(release))
    for name, source in (("rounds", rounds), ("job", job), ("halve", parted), ("bubble", bubble),
                         ("ranked", ranked)):
        if source:
            find(notebook, name)["source"] = source
    find(notebook, "double")["source"] = double
    find(notebook, "triple")["source"] = triple
    return notebook


def folder(root: Path, student: str) -> Path:
    return root / "submitted" / student / LAB


def put(root: Path, student: str, notebook: Notebook) -> Path:
    path = folder(root, student) / f"{LAB}.ipynb"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(notebook), errors="surrogatepass")
    return path


def hand_in(root: Path, attacks: list[Attack]) -> None:
    """Everybody's submissions, honest and other."""
    release = json.loads((root / "release" / LAB / f"{LAB}.ipynb").read_text())
    comment = f"  # {PEER}"
    for student, score in PEERS.items():
        triple = RIGHT_TRIPLE if score == MOST else "def triple(x):\n    return x"
        put(root, student, answered(release, RIGHT_DOUBLE + comment, triple + comment))
    for one in attacks:
        submit(root, one)


def submit(root: Path, one: Attack) -> None:
    release = json.loads((root / "release" / LAB / f"{LAB}.ipynb").read_text())
    notebook = answered(release, *(text.replace(ROOT, str(root)).replace("@LAB@", LAB)
                                   for text in (one.double, one.triple, one.rounds, one.job,
                                                one.parted, one.bubble, one.ranked)))
    if one.change:
        one.change(notebook)
    path = put(root, one.name, notebook)
    if one.place:
        here = os.getcwd()
        one.place(path.parent)
        os.chdir(here)
