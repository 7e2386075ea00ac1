"""docs/attacks.md, from the attacks themselves:  python -m tests.attacks.table > docs/attacks.md"""

from __future__ import annotations

from tests.attacks.attack import Attack
from tests.attacks.course import LAB
from tests.attacks.rows import all_attacks

MEANINGS = {"W": "wins", "P": "partly", "S": "withstood", "-": "not tried"}
# Rows that need other commands than grading.
OTHERS = (
    ("30", "A zip bomb, and archives in archives", "W", "collecting", "bomb"),
    ("31", "Paths out of an archive", "S", "collecting", "slip"),
    ("31", "Links in a zip", "S", "collecting", "links"),
    ("31", "Links, devices and paths in a tar", "S", "collecting", "tar-links"),
    ("35", "Handing in under another's name in the exchange", "W", "collecting", "exchange"),
    *(("v1", f"A forged record of virtual GPUs that names {what}", "-", "hostile", name)
      for name, what in (
          ("foreach-copy", "an operation over lists of different lengths, which reads past the "
                           "shorter one"),
          ("add-unequal", "other operations over lists of different lengths"),
          ("adam-unequal", "a fused optimizer with lists of different lengths"),
          ("strided", "an operation that reads outside a tensor"),
          ("resized", "an operation that resizes a tensor to 2^320 elements"),
          ("padding", "a convolution with a padding of 2^62"),
          ("dilation", "a transposed convolution with a negative dilation, in no groups"),
          ("pooling", "a pooling with windows of 2^62 in steps of 0"),
          ("groups", "a normalization in no groups"),
          ("indices", "20,000 indices of one tensor"),
          ("splits", "a split into 2^50 tensors"),
          ("repeats", "20,000 repetitions of 2^62 times each"),
          ("rnn", "an operation that no check knows"))),
    ("v2", "10,000 records of virtual GPUs with random changes", "-", "hostile", "mutated"),
    ("v3", "A record whose price ends the process that computes it", "-", "pricing", "ends_itself"),
    ("v3", "A record whose price takes a terabyte", "-", "pricing", "takes_memory"),
    ("v3", "A record whose price takes forever", "-", "pricing", "takes_time"),
    ("v3", "A record that has the process that prices it read files or connect", "-", "pricing",
     "opens_neither"),
    ("v3", "A process that prices records and sends other figures", "-", "pricing", "validated"),
    *(("w1", f"A cell that forges what ranks send: {what}", "-", "forged_ranks", name)
      for what, name in (
          ("it replaces the functions that run ranks", "the functions that run ranks"),
          ("it writes to the memory of the sandbox's first process", "the router's memory"),
          ("it answers in their place", "a_shell_cannot_answer"))),
    *(("w2", f"A collective that a check forbids, as {name}", "-", "forged_ranks", name)
      for name in ("all_reduce under another name", "the method of the group",
                   "a functional collective", "an operator of torch.ops", "torch._C",
                   "an inner group")),
    *(("w3", f"Ranks that do not communicate: {name}", "-", "forged_ranks", name)
      for name in ("no communication", "a group of one rank",
                   "a constant factor, and junk for the other rank")),
    ("w4", "A rank that looks for another rank's input in its own memory", "-", "forged_ranks",
     "only_its_own_input"),
    ("w5", "Ranks that write into a stream that they share", "-", "forged_ranks", "share_no_file"),
    ("w5", "Ranks that set flags of a stream that they share", "-", "forged_ranks",
     "share_no_flags"),
    *(("w6", f"Ranks that talk past the broker: {name}", "-", "isolation", name)
      for name in ("a socket", "a new file", "a file for appending", "another time", "a named pipe",
                   "an attribute", "a fork", "a signal", "shared memory", "a terminal",
                   "an owner of a descriptor", "another one's limit", "another one's processors",
                   "another one's scheduler", "a process group", "another process's state",
                   "another process's files", "letting others trace it")),
)
INTRODUCTION = f"""# Attacks on the grader

Every attack that we know of is a program in `tests/attacks/rows/`. A student hands it in as the
answers, the notebook or the folder of a small lab (`{LAB}`), beside three honest classmates. Each
runs twice, in a jail that keeps it from the machine:

- against **stock nbgrader 0.9.6**, unconfigured: the control. Where the table says *wins*, a
  test requires that it does, so an attack that has died cannot pass for a defence. *Partly*: it
  does some of its harm. *Withstood*: stock nbgrader holds. *Not tried*: an attack on parts that
  stock nbgrader does not have, or of our own invention.
- against **ours**, all of them in one class: none may change a score (its own neither, except to
  *ungraded* where the submission ended its own sandbox), leak a test, a solution or a classmate's
  work, change a file of the course, leave a process, reach the network, or keep anybody from being
  graded.

The numbers are those of a survey of attack classes; what has a letter goes beyond it. "Earns" is
what the submission's honest part is worth, of 5 points; ungraded is what ours says when nothing
honest can be said. `make stress` runs everything, `make test` a few.

Generated by `python -m tests.attacks.table > docs/attacks.md`; a test fails when it is stale.

| row | attack | stock nbgrader | with ours it earns | test |
|---|---|---|---|---|
"""
REMAINS = """
## What remains possible

- **Hidden arguments can be learned** (row 40): code that is called sees what it is called with, and
  can put it into an exception's text, or into a file that a later cell prints. The page of feedback
  shows both. Let `check.draw` draw the hidden cases: each submission has others, so those of the
  last one are of no use. What is written down in a hidden test is secret until somebody asks.
- **A submission can end its own sandbox**, and is then ungraded, where an honest wrong answer would
  have been 0. A reason says what happened; a person decides.
- **A submission may take all the time that it is given**: `c.Grading.seconds_per_notebook`.
- **Times of receipt of files that you put into `submitted/` by hand** rest on the files' own times,
  which an archive preserves and a student can set. `lab collect` notes its own.
"""


def table() -> str:
    lines = [(one.row, one.title, one.stock, earns(one), f"`{_plain(one.name)}`")
             for one in all_attacks()]
    lines += [(row, title, stock, "nothing", f"`test_{module}.py`, `{name}`")
              for row, title, stock, module, name in OTHERS]
    lines.sort(key=lambda line: _order(line[0]))
    return INTRODUCTION + "".join(
        f"| {row} | {title.replace('|', '&#124;')} | {MEANINGS[stock]} | {earned} | {test} |\n"
        for row, title, stock, earned, test in lines) + REMAINS


def earns(one: Attack) -> str:
    if one.score is None:
        return "ungraded"
    earned = f"{one.score:g}" + (", or ungraded" if one.may_end else "")
    return earned + ("; see below" if one.remains else "")


def _plain(name: str) -> str:
    """A student's name that a table of Markdown can bear."""
    text = name.encode("ascii", "backslashreplace").decode().replace("`", "'")
    text = "".join(letter if letter.isprintable() else f"\\x{ord(letter):02x}" for letter in text)
    return text if len(text) <= 30 else text[:20] + "..."


def _order(row: str) -> tuple[str, int]:
    letter = row[0] if row[0].isalpha() else ""
    return letter, int(row[len(letter):])


if __name__ == "__main__":
    print(table(), end="")
