"""The root cause of a log, not its last noise."""

import pytest

from job_monitor import causes
from tests.job_monitor.samples import ENDED, LOST, OOM, hung, killed, lines, out_of_memory


def root(log):
    return causes.find_errors(log)[0]


def test_a_healthy_log_has_none():
    assert causes.find_errors(lines("[after training is done] datetime: 2026-01-01 00:00:00 ")
                              ) == []


def test_out_of_memory_names_its_rank_though_others_spoke_first():
    result = root(out_of_memory(2))
    assert (result.kind, result.ranks) == ("out of memory", (2,))
    assert result.text.startswith("CUDA out of memory. Tried to allocate 4.00 GiB (GPU 0; 15.78")


def test_ranks_that_say_the_same_are_told_together():
    errors = causes.find_errors([f"[rank {rank}] RuntimeError: {OOM}" for rank in (3, 0)])
    assert [(one.kind, one.ranks) for one in errors] == [("out of memory", (0, 3))]


def test_a_killed_rank_is_named_and_those_who_lost_it_are_not_the_cause():
    errors = causes.find_errors(killed())
    assert (errors[0].kind, errors[0].ranks) == ("killed", (3,))
    assert "SIGKILL" in errors[0].text
    assert ("lost contact", (0, 1, 2)) in [(one.kind, one.ranks) for one in errors[1:]]


def test_a_time_out_is_the_cause_where_nothing_else_is():
    result = root(hung())
    assert (result.kind, result.ranks) == ("timeout", (0, 2, 3))


def test_srun_s_terminate_of_the_others_is_no_signal_of_its_own():
    errors = causes.find_errors(lines(LOST.format(0), ENDED.format(code=-15, signal=" (SIGTERM)")))
    assert "killed" not in [one.kind for one in errors]


@pytest.mark.parametrize(("line", "kind", "text"), [
    ("error: unrecognized argument --hiden-size; did you mean --hidden-size?", "error",
     "unrecognized argument --hiden-size"),
    ("[rank 1] error: --data-path x: no such file", "error", "--data-path x"),
    ("slurmstepd-n1: error: StepId=6.0 exceeded memory limit (9 > 2), being killed",
     "memory limit", "exceeded memory limit (9 > 2)"),
    ("slurmstepd-n1: error: *** JOB 7 ON n1 CANCELLED AT 2026-01-01T00:00:00 DUE TO TIME LIMIT ***",
     "time limit", "DUE TO TIME LIMIT"),
    ("slurmstepd-n1: error: *** JOB 7 ON n1 CANCELLED AT 2026-01-01T00:00:00 ***", "cancelled",
     "JOB 7"),
    ("slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-01-01T00:00:00 DUE TO NODE FAILURE ***",
     "node failure", "NODE FAILURE"),
    ("/spool/slurm_script: line 5: torchrn: command not found", "script", "torchrn"),
    ("python: can't open file '/x/pretrain.py': [Errno 2] No such file", "error", "can't open"),
    ("ModuleNotFoundError: No module named 'apex'", "exception", "No module named 'apex'"),
    ("[rank3]: ValueError: bad shape", "exception", "ValueError: bad shape"),
    ("[rank1]:[E101 ProcessGroupNCCL.cpp:607] [Rank 1] Watchdog caught collective operation "
     "timeout: WorkNCCL(SeqNum=3)", "timeout", "Watchdog caught"),
    ("srun: error: n2: task 3: Segmentation fault", "killed", "task 3: Segmentation fault"),
])
def test_what_programs_say_before_srun_does(line, kind, text):
    noise = "srun: error: slurmnode1: task 0: Exited with exit code 1"
    found = root(lines(noise, line, noise))
    assert found.kind == kind and text in found.text


@pytest.mark.parametrize(("line", "rank"), [("[rank3]: ValueError: bad shape", 3),
                                            ("[rank 12] TypeError: no", 12)])
def test_a_rank_in_front_of_a_message_is_its_own(line, rank):
    assert root([line]).ranks == (rank,)


def test_a_traceback_and_the_trainer_s_last_line_are_one_cause():
    errors = causes.find_errors(["Traceback (most recent call last):", "ValueError: bad shape",
                         "[rank 2] ValueError: bad shape"])
    assert [(one.ranks, one.line) for one in errors] == [((2,), 1)]


def test_an_exception_without_a_rank_is_the_only_first_failure_s():
    assert root(lines("KeyError: 'x'", ENDED.format(code=1, signal=""))).ranks == (2,)


def test_a_dead_peer_s_exception_is_no_cause():
    errors = causes.find_errors([
        "RuntimeError: [pair.cc:547] Connection closed by peer [10.77.0.12]:3",
        "[rank 2] IndexError: out of range"])
    assert errors[0].ranks == (2,) and errors[1].kind == "lost contact"


def test_texts_cannot_steer_a_terminal():
    assert root(["[rank 0] error: \x1b[2J\x07gone"]).text == "[2J gone"


def test_of_a_very_long_log_both_ends_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(causes, "HEAD", 100)
    monkeypatch.setattr(causes, "TAIL", 100)
    path = tmp_path / "log.txt"
    path.write_text("error: at the start\n" + "x" * 1000 + "\nerror: at the end\n")
    read = causes.read(path)
    assert read[0] == "error: at the start" and read[-1] == "error: at the end"
    assert sum(map(len, read)) < 210
    assert causes.read(tmp_path / "none") == []


def test_srun_s_padded_labels_are_stripped():
    (error,) = causes.find_errors([" 3: [rank 3] error: no such file"])
    assert (error.kind, error.ranks) == ("error", (3,))


EXITED = "srun: error: slurmnode1: task 0: Exited with exit code 1"


def test_a_line_that_no_pattern_knows_is_the_cause_if_there_is_nothing_better():
    unknown = ["my_trainer: could not read the corpus", "UserWarning: cannot use fused kernels",
               "2 INFO failed requests: 0"]
    (guess, exited) = causes.find_errors(lines(*unknown, EXITED))
    assert (guess.kind, guess.text) == ("unknown error", unknown[0])
    assert exited.kind == "exit code"
    assert causes.find_errors(lines(*unknown)) == []  # nothing failed
    assert root(lines(*unknown, "ValueError: bad shape", EXITED)).text == "ValueError: bad shape"


def test_what_slurm_says_is_the_cause_only_without_the_program_s_own_error():
    said = "slurmstepd: error: couldn't chdir to `/x': No such file or directory"
    assert root([said, EXITED]).text == said
    assert root([said, "[rank 1] error: bad flag", EXITED]).text == "bad flag"
