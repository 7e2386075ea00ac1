"""How many of the error lines that people post are found as the root cause of their log."""

from pathlib import Path

import pytest

from job_monitor import causes
from tests.job_monitor.samples import lines

ROOT = Path(__file__).resolve().parents[2]
TUNED, HELD_OUT = ([line.split("\t") for line in part.splitlines()[1:]] for part in
                   Path(__file__).with_name("wild_errors.txt").read_text().split("\n# ")[1:])
WILD = [*TUNED, *HELD_OUT]
# What follows an error in a log, whatever it is.
AFTER = ["torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
         "E1211 08:26:06.844000 139773546530624 torch/distributed/elastic/"
         "multiprocessing/api.py:833] failed (exitcode: 1) local_rank: 1 (pid: 6833) of binary: p",
         "srun: error: slurmnode2: task 1: Exited with exit code 1",
         "slurmstepd-slurmnode1: error: *** STEP 5.0 ON slurmnode1 CANCELLED AT 2026-01-01T00 ***",
         "srun: error: slurmnode1: task 0: Terminated"]
# What a launcher or a log collector may write before each line.
PREFIXES = ("12: ", " 3: ", "[default0]:", "[trainer3]:", "0: [default7]:",
            "2024-05-01T10:20:30.123Z ", "[2024-05-01 10:20:30,123] ",
            "(Worker pid=552, ip=10.130.6.168) ", "\r100%|#### | 9/9\r")


def is_found(line: str, prefix: str = "") -> bool:
    """Return whether the line is the root cause of a log that it is in."""
    log = lines("Traceback (most recent call last):", line, *AFTER)
    log = [prefix + each for each in log]
    errors = causes.find_errors(log)
    return bool(errors) and line in log[errors[0].line] and bool(errors[0].text)


def recall(half) -> tuple[float, float]:
    """Return the share of lines that are found, and the share that a pattern finds."""
    found = [line for _, line in half if is_found(line)]
    known = [line for line in found if causes.find_errors([line, *AFTER])[0].tier != causes.GUESS]
    return len(found) / len(half), len(known) / len(half)


def test_the_corpus_has_two_parts_with_sources():
    assert len(TUNED) >= 80 and len(HELD_OUT) >= 40
    assert len({line for _, line in WILD}) == len(WILD)
    assert all(source.count("/") == 3 and len(line) < 300 for source, line in WILD)


def test_the_root_cause_is_found_in_lines_of_public_issues(capsys):
    (tuned, _), (held_out, known) = recall(TUNED), recall(HELD_OUT)
    with capsys.disabled():
        print(f"\nroot causes found: {tuned:.0%} of {len(TUNED)} lines for tuning, {held_out:.0%} "
              f"of {len(HELD_OUT)} held-out lines, {known:.0%} by a pattern")
    assert tuned == 1 and held_out >= 0.75
    page = " ".join((ROOT / "docs" / "watching-jobs.md").read_text().split())
    assert f"were developed on {len(TUNED)} lines, and find all of them" in page
    assert f"{held_out:.0%} of {len(HELD_OUT)} held-out lines" in page
    assert f"{known:.0%} by a pattern" in page


@pytest.mark.parametrize("prefix", PREFIXES)
def test_what_launchers_write_before_a_line_hides_nothing(prefix):
    assert [line for _, line in WILD if is_found(line) and not is_found(line, prefix)] == []
