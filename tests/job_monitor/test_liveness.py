"""One word for every rank, and why."""

import pytest

from job_monitor import ranks
from tests.job_monitor.samples import (
    NOW,
    hung,
    job,
    killed,
    lines,
    out_of_memory,
    rank_file,
    take,
    told,
    virtual_file,
    write_files,
)

ALL = range(4)


def test_a_healthy_job_runs(tmp_path):
    shown = take(tmp_path, job(), lines())
    assert told(shown) == dict.fromkeys(ALL, "running")
    assert (shown.problem, shown.mismatches) == ("", [])
    assert (shown.latest.iteration, shown.latest.train_iters, shown.latest.loss) == (3, 20, 8.7)


def test_out_of_memory_on_rank_2(tmp_path):
    files = [virtual_file(number) for number in ALL]
    shown = take(tmp_path, job("FAILED"), out_of_memory(2), files)
    assert told(shown)[2] == "failed"
    assert shown.problem.startswith("out of memory on rank(s) 2: CUDA out of memory. Tried to")
    assert shown.device == "virtual v100-sxm2-16gb"


def test_a_killed_rank_is_dead_while_the_job_still_runs(tmp_path):
    shown = take(tmp_path, job(), lines(), processes={3: ranks.GONE})
    assert told(shown) == {0: "running", 1: "running", 2: "running", 3: "dead"}
    assert shown.rows[3].reason == "its process is gone, and reported no error"


def test_a_killed_rank_is_dead_and_the_others_failed_by_it(tmp_path):
    shown = take(tmp_path, job("FAILED"), killed())
    assert told(shown) == {0: "failed", 1: "failed", 2: "failed", 3: "dead"}
    assert shown.problem.startswith("killed on rank(s) 3: killed by SIGKILL")
    assert shown.rows[0].reason.startswith("lost contact with another rank")


def test_silence_beyond_the_usual_step_is_a_stall(tmp_path):
    files = [rank_file(number, time=NOW - 30) for number in ALL]
    shown = take(tmp_path, job(), lines(), files)
    assert told(shown) == dict.fromkeys(ALL, "stalled")
    assert shown.rows[0].reason == (
        "no update for 30 s in state training; a step usually takes 0.1 s")


@pytest.mark.parametrize("fields", [
    {"pace": 2.0}, {"state": "starting", "pace": None}, {"state": "evaluating"},
    {"state": "saving"}])
def test_a_slow_step_a_start_and_an_evaluation_may_take_longer(tmp_path, fields):
    files = [rank_file(number, time=NOW - 30, **fields) for number in ALL]
    assert set(told(take(tmp_path, job(), lines(), files)).values()) == {"running"}


def test_a_stopped_process_is_named_by_those_who_wait_for_it(tmp_path):
    files = [rank_file(number, time=NOW - 30) for number in ALL]
    shown = take(tmp_path, job(), lines(), files, {1: ranks.STOPPED})
    assert told(shown) == {0: "stalled", 1: "stopped", 2: "stalled", 3: "stalled"}
    assert shown.rows[2].reason.startswith("waits for rank(s) 1; no update for 30 s")
    assert shown.problem == "rank(s) 1 stopped"


def test_after_a_time_out_the_silent_rank_is_named(tmp_path):
    shown = take(tmp_path, job("FAILED"), hung())
    assert told(shown) == {0: "failed", 1: "dead", 2: "failed", 3: "failed"}
    assert shown.problem.startswith("timeout: rank(s) 1 did not respond to the others")
    assert shown.rows[1].reason == "did not respond to the other ranks in time"


def test_a_pipeline_s_stages_name_the_one_they_lost(tmp_path):
    """Stage 0 waits for 1, and 1 for 2, which is stopped; 3 was ended before it could say so."""
    late = ("[rank {}] error: lost contact with rank {} (stage {}) while waiting for F3 (Timed "
            "out waiting 18000ms for recv operation to complete); its own message says why")
    shown = take(tmp_path, job("FAILED"), lines(late.format(0, 1, 1), late.format(1, 2, 2)))
    assert shown.problem.startswith("timeout: rank(s) 2 did not respond to the others")
    assert told(shown) == {0: "failed", 1: "failed", 2: "dead", 3: "dead"}


@pytest.mark.parametrize(("state", "reason"), [
    ("CANCELLED", "the job was cancelled"), ("TIMEOUT", "the job reached its time limit"),
    ("NODE_FAIL", "a node of the job failed"),
    ("FAILED", "ended with the job, and reported no error")])
def test_a_job_s_end_is_the_ranks_(tmp_path, state, reason):
    shown = take(tmp_path, job(state), lines())
    assert {(row.health, row.reason) for row in shown.rows} == {("dead", reason)}


@pytest.mark.parametrize(("state", "reason"), [
    ("done", "all iterations"), ("stopped at iteration 3", "exited at iteration 3"),
    ("stopped after receiving SIGTERM.", "exited after receiving SIGTERM")])
def test_a_rank_that_came_to_its_end_is_done(tmp_path, state, reason):
    files = [rank_file(number, state=state) for number in ALL]
    shown = take(tmp_path, job("COMPLETED"), lines(), files)
    assert {(row.health, row.reason) for row in shown.rows} == {("done", reason)}


def test_errors_of_a_job_that_succeeded_are_no_problem(tmp_path):
    files = [rank_file(number, state="done") for number in ALL]
    shown = take(tmp_path, job("COMPLETED"), lines("ValueError: caught and shown"), files)
    assert shown.problem == "" and len(shown.errors) == 1


def test_a_rank_without_a_file_is_there_all_the_same(tmp_path):
    files = [rank_file(number) for number in (0, 1, 3)]
    shown = take(tmp_path, job(), lines(), files)
    assert (shown.rows[2].health, shown.rows[2].reason) == ("running", "has not reported yet")
    shown = take(tmp_path, job("FAILED"), lines(), files)
    assert (shown.rows[2].health, shown.rows[2].reason) == ("dead", "never reported")


def test_files_of_an_earlier_run_in_the_same_job_do_not_count(tmp_path):
    folder = write_files(tmp_path, rank_file(3, started=1.0),
                         *(rank_file(n, world_size=2, started=50.0) for n in (0, 1)))
    assert list(ranks.read(folder)) == [0, 1]


@pytest.mark.parametrize("text", [
    "", "[]", "{", "null", '{"rank": 0, "world_size": "x", "pid": [1], "place": 3, "time": null}',
    '{"loss": NaN, "iteration": Infinity, "node": 5, "started": true}'])
def test_a_file_with_nonsense_does_no_harm(tmp_path, text):
    (tmp_path / "0.json").write_text(text)
    (tmp_path / "notes.json").write_text("{}")
    assert set(ranks.read(tmp_path)) <= {0}


def test_only_the_last_stage_has_a_loss(tmp_path):
    folder = write_files(tmp_path, *(
        rank_file(n, loss=float(n), place={"pp": n // 2, "dp": 0, "tp": 0}) for n in ALL))
    assert [one.loss for one in ranks.read(folder).values()] == [None, None, 2.0, 3.0]


def fake_process(proc, state, *words):
    folder = proc / "103"
    folder.mkdir()
    (folder / "stat").write_text(f"103 (a) b) {state} 1 2 3")
    (folder / "environ").write_bytes(b"\0".join(words))


@pytest.mark.parametrize(("state", "words", "found"), [
    ("S", [b"SLURM_JOB_ID=7", b"RANK=3"], "alive"), ("R", [b"SLURM_JOB_ID=7"], "alive"),
    ("T", [b"SLURM_JOB_ID=7", b"RANK=3"], "stopped"), ("Z", [b"SLURM_JOB_ID=7"], "gone"),
    ("S", [b"SLURM_JOB_ID=8", b"RANK=3"], "gone"), ("S", [b"SLURM_JOB_ID=7", b"RANK=0"], "gone")])
def test_a_pid_is_the_rank_s_only_if_its_environment_says_so(tmp_path, state, words, found):
    fake_process(tmp_path, state, *words)
    assert ranks.process(tmp_path, 7, ranks.RankStatus(3, pid=103)) == found


def test_a_process_that_cannot_be_seen_is_not_called_dead(tmp_path):
    assert ranks.process(tmp_path, 7, ranks.RankStatus(3, pid=103)) == "gone"
    assert ranks.process(None, 7, ranks.RankStatus(3, pid=103)) is None
    assert ranks.process(tmp_path, 7, ranks.RankStatus(3)) is None


def test_errors_of_an_earlier_attempt_count_only_after_the_end(tmp_path):
    """torchrun ... || torchrun ..., or a job that was requeued: one log."""
    log = out_of_memory(2) + lines()
    shown = take(tmp_path, job(), log)
    assert told(shown) == dict.fromkeys(ALL, "running")
    assert (shown.problem, shown.errors) == ("", [])
    assert take(tmp_path, job("FAILED"), log).problem.startswith("out of memory")
    same = next(line for line in log if line.startswith("[rank 2]"))
    again = take(tmp_path, job(), [*log, same])
    assert [cause.line for cause in again.errors] == [len(log)]


def test_of_two_log_files_the_order_is_not_known(tmp_path):
    apart = job(out=tmp_path / "out", err=tmp_path / "err")
    assert take(tmp_path, apart, ["[rank 1] error: no", *lines()]).problem
    assert not take(tmp_path, job(), ["[rank 1] error: no", *lines()]).problem


@pytest.mark.parametrize("state", ["PENDING", "REQUEUE_HOLD"])
def test_a_job_that_waits_to_run_again_has_no_ranks(tmp_path, state):
    shown = take(tmp_path, job(state), lines(), processes={0: ranks.GONE})
    assert (shown.rows, shown.problem) == ([], "")


@pytest.mark.parametrize(("name", "text"), [
    ("\u00b2", "{}"), ("5", '{"world_size": 3}'), ("5", "[" * 60_000), ("9" * 30, "{}"),
    ("5", '{"node": "' + "x" * 2**16 + '"}')], ids=["name", "size", "deep", "long name", "long"])
def test_a_file_that_no_rank_wrote_is_none(tmp_path, name, text):
    (tmp_path / f"{name}.json").write_text(text)
    assert ranks.read(tmp_path) == {}
    assert list(ranks.read(write_files(tmp_path, rank_file(1)))) == [1]


def test_numbers_that_cannot_be_are_left_out(tmp_path):
    huge = 10**400
    folder = write_files(tmp_path, rank_file(
        0, iteration=huge, pid=1e300, memory_used=float("nan"), pace=float("inf"), time=huge,
        tflops=float("nan"), loss=float("nan")))
    rank = ranks.read(folder)[0]
    assert (rank.iteration, rank.pid, rank.pace, rank.written, rank.tflops) == (
        0, None, None, 0.0, None)
    assert rank.loss != rank.loss  # a loss that is no number is worth showing
