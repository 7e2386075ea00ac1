"""The details of `lab top JOBID`, from the files that a job's nodes left behind."""

import io
import json

import pytest

from job_monitor import cli, details, nodes, requested, snapshot, table, verdicts
from job_monitor.components import NODE_FILES
from labcore.errors import LabError
from tests.job_monitor.samples import VIRTUAL, job, lines, take, virtual_file

GPUS = """\
Tue Nov 24 04:24:55 2026   slurmnode1 (virtual GPUs: modeled, no hardware)
+---------------------------------------------------------------------------------------+
| NVIDIA-SMI 550.54.15              Driver Version: 550.54.15    CUDA Version: 12.4     |
|=========================================+======================+======================|
|   0  NVIDIA A100-SXM4-80GB          On  | 00000000:1B:00.0 Off |                    0 |
| N/A   34C    P0              62W / 400W |   3650MiB / 81152MiB |     72%      Default |
|                                         |                      |             Disabled |
+-----------------------------------------+----------------------+----------------------+
|   1  NVIDIA A10                     N/A | 00000000:1C:00.0 N/A |                  N/A |
| N/A   N/A   N/A              N/A /  N/A |     12MiB / 22557MiB |     N/A      Default |
+-----------------------------------------+----------------------+----------------------+
| Processes:                                                                            |
|  GPU   GI   CI        PID   Type   Process name                            GPU Memory |
|=======================================================================================|
|    0   N/A  N/A       122      C   python                                     3640MiB |
|    0   N/A  N/A       124      C   python                                       10MiB |
+---------------------------------------------------------------------------------------+
"""
IDLE = GPUS.replace("|    0   N/A  N/A", "|  None  N/A  N/A")
WARNED = """\
W1124 04:24:40.123000 77 torch/distributed/run.py:766] error handling is off
/w/a.py:3: UserWarning: an error in a warning is one
  warnings.warn("error")
"""
SCRIPT = "train.py --train-iters 20 --micro-batch-size 2"


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A workspace, in which `write(NODE, out=..., err=..., gpu=...)` makes a node's files."""
    monkeypatch.setenv("LAB_HOME", str(tmp_path))

    def write(node, **texts):
        folder = tmp_path / NODE_FILES / "7"
        folder.mkdir(parents=True, exist_ok=True)
        for suffix, text in texts.items():
            (folder / f"{node}.{suffix}").write_text(text)

    return write


def watched(tmp_path, what=None, log=None, script=SCRIPT, files=()):
    shown = take(tmp_path, what or job(gpus=2), lines(world=2) if log is None else log,
                 list(files), script=script)
    shown.nodes = nodes.read(7)
    return shown


def judged(shown):
    return {one.check: (one.verdict, one.reason) for one in verdicts.judge(shown, shown.nodes)}


def test_nvidia_smi_s_table_is_read():
    assert nodes.parse_table(GPUS.splitlines()) == [
        nodes.ListedGpu(0, "NVIDIA A100-SXM4-80GB", 3650, 81152, "72%", (122, 124)),
        nodes.ListedGpu(1, "NVIDIA A10", 12, 22557, "N/A")]


@pytest.mark.parametrize("text", ["", "NVIDIA-SMI has failed because it couldn't communicate",
                                  "|    0   N/A  N/A       122      C   python      1MiB |"])
def test_what_is_no_such_table_has_no_gpu(text):
    assert nodes.parse_table(text.splitlines()) == []


def test_every_node_s_last_lines_are_shown(home, tmp_path):
    home("slurmnode10", out="old\none\n\ntwo\n", err="", gpu=GPUS)
    home("slurmnode2", out="x" * 300, gpu="NVIDIA-SMI has failed\n")
    (tmp_path / NODE_FILES / "7" / "joined.1").write_text("8")
    text = table.as_text([watched(tmp_path)], 2)
    end = [line.strip() for line in text.splitlines()]
    end = end[end.index("slurmnode2.out"):]
    assert end[:7] == [
        "slurmnode2.out", "x" * 200 + "...", "slurmnode2.err (not written yet)", "slurmnode2.gpu",
        "NVIDIA-SMI has failed", "slurmnode10.out", "one"]
    assert end[7:9] == ["two", "slurmnode10.err (empty)"]
    assert end[10:] == [
        "GPU 0  NVIDIA A100-SXM4-80GB  3650 of 81152 MiB  72%  process 122, 124",
        "GPU 1  NVIDIA A10  12 of 22557 MiB  N/A  no process"]
    assert "ms per iteration, up to iteration 3: 101.0, 102.0, 103.0; median 102.0" in text


def test_a_job_without_files_of_its_nodes_has_its_log_s(home, tmp_path):
    log = tmp_path / "log.txt"
    log.write_text("first\nlast\n")
    shown = watched(tmp_path, job(out=log, err=log))
    assert table.as_text([shown], 1).splitlines()[-2:] == ["  log.txt", "    last"]


def test_a_healthy_job_has_four_good_verdicts(home, tmp_path):
    home("slurmnode1", err=WARNED, gpu=GPUS.replace("|    0   N/A  N/A       124",
                                                    "|    1   N/A  N/A       124"))
    assert judged(watched(tmp_path)) == {
        "state": ("ok", "RUNNING"), "GPU processes": ("ok", "a process on each of 2 GPUs"),
        "stderr": ("ok", "no error in slurmnode1.err"),
        "configuration": ("ok", "3 settings as requested")}


@pytest.mark.parametrize(("state", "word", "text"), [
    ("PENDING", "-", "not RUNNING: PENDING (Resources)"),
    ("COMPLETED", "-", "not RUNNING: COMPLETED (Resources)"),
    ("FAILED", "BAD", "not RUNNING: FAILED (Resources)")])
def test_a_job_that_does_not_run_is_told(home, tmp_path, state, word, text):
    result = judged(watched(tmp_path, job(state, reason="Resources")))
    assert result["state"] == (word, text)
    assert result["GPU processes"] == ("-", "the job is not running")


def test_of_joined_jobs_each_has_to_run(home, tmp_path):
    states = ((7, "RUNNING"), (8, "FAILED"))
    assert judged(watched(tmp_path, job(states=states)))["state"] == (
        "BAD", "not RUNNING: job 8 FAILED")
    states = ((7, "RUNNING"), (8, "PENDING"))
    assert judged(watched(tmp_path, job(states=states)))["state"][0] == "-"


def test_a_gpu_without_a_process_is_told(home, tmp_path):
    home("slurmnode1", gpu=GPUS)
    assert judged(watched(tmp_path))["GPU processes"] == (
        "BAD", "no process on GPU 1 of slurmnode1")
    assert judged(watched(tmp_path, job(gpus=4)))["GPU processes"][0] == "BAD"
    assert judged(watched(tmp_path, job(gpus=None), files=[]))["GPU processes"][0] == "BAD"


def test_the_ranks_processes_are_newer_than_nvidia_smi(home, tmp_path):
    home("slurmnode1", gpu=IDLE)
    files = [virtual_file(n, node="slurmnode1", world_size=2) for n in range(2)]
    assert judged(watched(tmp_path, files=files))["GPU processes"][0] == "ok"
    files[1]["state"] = "failed"
    assert judged(watched(tmp_path, files=files))["GPU processes"] == (
        "BAD", "no process on GPU 1 of slurmnode1")


def test_without_gpus_there_is_nothing_to_check(home, tmp_path):
    assert judged(watched(tmp_path, job()))["GPU processes"] == ("-", "the job has no GPU")


def test_a_node_that_ends_after_the_rendezvous_has_no_error(home, tmp_path):
    record = "E1124 06:35:04.909000 966 torch/distributed/elastic/agent/server/api.py:1008]"
    ended = (f"[W1124 06:35:04.384 TCPStore.cpp:138] [c10d] recvValueWithTimeout failed\n"
             "Exception raised from recvBytes at Utils.hpp:787 (most recent call first):\n"
             "frame #0: c10::Error::Error(c10::SourceLocation) + 0x9d (0x7f in libc10.so)\n"
             f"{record} Error waiting on exit barrier. Elapsed: 0.03 seconds\n"
             f"{record} Traceback (most recent call last):\n"
             f"{record} torch.distributed.DistNetworkError: Failed to recv, got 0 bytes\n")
    home("slurmnode2", err=ended)
    assert judged(watched(tmp_path))["stderr"][0] == "ok"
    other = record.replace("1008", "900")
    home("slurmnode2", err=f"{ended}{other} Error: the worker group failed\n")
    assert judged(watched(tmp_path))["stderr"][0] == "BAD"


@pytest.mark.parametrize(("line", "told"), [
    ("Traceback (most recent call last):", "Traceback (most recent call last):"),
    ("torch.OutOfMemoryError: CUDA out of memory.", "CUDA out of memory."),
    ("[rank 1] error: lost contact", "lost contact"),
    ("Fatal Python error: Bus error", "Fatal Python error: Bus error"),
    ("srun: error: slurmnode1", "srun: error: slurmnode1")])
def test_an_error_in_stderr_is_told(home, tmp_path, line, told):
    home("slurmnode1", err=WARNED)
    home("slurmnode2", err=f"{WARNED}{line}\n")
    assert judged(watched(tmp_path))["stderr"] == (
        "BAD", f"error lines: 1 in slurmnode2.err; the first: {told}")


def test_without_the_nodes_files_known_errors_in_the_log_count(home, tmp_path):
    shown = watched(tmp_path, log=lines("[rank 1] error: no such file"))
    assert judged(shown)["stderr"] == ("BAD", "no such file")
    assert judged(watched(tmp_path))["stderr"][0] == "ok"
    assert judged(watched(tmp_path, log=[]))["stderr"] == ("-", "no file yet")


def test_a_configuration_that_differs_is_marked(home, tmp_path):
    script = SCRIPT.replace("20", "8") + " --sequence-parallel --micro-batch-size 2 --fp16"
    log = lines()
    log.insert(2, "  fp16 ............................................ False")
    shown = watched(tmp_path, log=log, script=script)
    assert judged(shown)["configuration"] == (
        "BAD", "differs: --train-iters: requested 8, but the log says 20; --fp16: requested True, "
        "but the log says False; ranks: requested 2 GPUs, but the log says 4 rank(s)")
    rows = {line.text.split()[0]: line for line in details.describe(shown, 1) if line.text}
    assert rows["--train-iters"].text.split() == ["--train-iters", "8", "20", "<-", "differs"]
    assert rows["--train-iters"].style == "red"
    assert rows["--micro-batch-size"].text.split() == ["--micro-batch-size", "2", "2"]
    assert [one.text.split()[0] for one in details.describe(shown, 0)][5:8] == [
        "--train-iters", "--fp16", "ranks"]


def test_before_the_trainer_says_its_configuration_there_is_no_verdict(home, tmp_path):
    assert judged(watched(tmp_path, log=["starting"]))["configuration"][0] == "-"


def test_a_partition_and_a_schedule_are_compared():
    script = "train.py --balance 9-3 --schedule gpipe --data-path x/y"
    config = {"balance": "8-4", "schedule": "gpipe"}
    assert [(one.name, one.differs) for one in requested.settings(job(), script, config)] == [
        ("--balance", True), ("--schedule", False)]
    assert requested.flags('train.py --schedule "$MINE" --balance $((3))') == {}


def test_nothing_in_the_files_steers_the_terminal(home, tmp_path):
    hostile = "\x1b[2J\x9b2J\u202e error"
    home("slurmnode1", out=hostile, err=hostile, gpu=GPUS.replace("NVIDIA A10 ", "\x1b[2J A10"))
    text = table.as_text([watched(tmp_path)], 3)
    assert text.replace("\n", "").isprintable()


def test_programs_get_the_same(home, tmp_path):
    home("slurmnode1", gpu=GPUS)
    told = json.loads(json.dumps(details.as_dict(watched(tmp_path))))
    assert [one["verdict"] for one in told["verdicts"]] == ["ok", "BAD", "ok", "ok"]
    assert told["nodes"][0]["gpus"][0]["processes"] == [122, 124]
    assert told["settings"][0] == {"what": "--tensor-model-parallel-size", "requested": None,
                                   "runs": "1", "differs": False}


def test_a_terminal_that_is_too_small_keeps_the_verdicts(home, tmp_path):
    from rich.console import Console

    for number in range(8):
        home(f"slurmnode{number}", out="line\n" * 9, err="", gpu=GPUS)
    files = [virtual_file(n, world_size=32) for n in range(32)]
    shown = watched(tmp_path, files=files)
    console = Console(width=120, height=30, file=io.StringIO())
    table_shown = table.shorten_to_terminal([shown], "the foot", console, 3)
    drawn = console.render_lines(table_shown, pad=False)
    text = ["".join(part.text for part in line).strip() for line in drawn]
    assert len(text) < 30 and text[-1] == "the foot"
    assert any(line.startswith("GPU processes  BAD") for line in text)


def test_watching_without_a_terminal_prints_until_the_end(tmp_path, monkeypatch, capsys):
    answers = iter([LabError("Slurm does not respond"),
                    [take(tmp_path, job("COMPLETED"), lines())]])

    def look(*_):
        answer = next(answers)
        if isinstance(answer, LabError):
            raise answer
        return answer

    monkeypatch.setattr(cli, "take_snapshots", look)
    cli.print_repeatedly([take(tmp_path, job(), lines())], 7, None, 0.0, 1)
    said = capsys.readouterr().out
    assert said.index("RUNNING") < said.index("no update: Slurm") < said.index("COMPLETED")


@pytest.mark.parametrize(("given", "number", "error"), [
    (3, None, "top --lines 3 needs a job"), (0, 7, "not between 1 and 1000 lines; nearest: 1"),
    (2000, 7, "nearest: 1000")])
def test_a_bad_number_of_lines_is_explained(given, number, error):
    with pytest.raises(LabError, match=error):
        cli._line_count(given, number)
    assert (cli._line_count(None, None), cli._line_count(None, 7), cli._line_count(5, 7)) == (
        None, details.LINES, 5)


def test_the_table_has_every_rank_s_memory(tmp_path):
    files = [virtual_file(n, max_allocated=3 * 2**30) for n in range(4)]
    shown = take(tmp_path, job(), lines(label=VIRTUAL), files)
    assert [line.split()[8:11] for line in table.as_text([shown]).splitlines()[2:6]] == [
        ["10.0/16.0", "GiB", "3.0"]] * 4
    assert snapshot.as_dict(shown)["ranks"][3]["memory_peak"] == 3 * 2**30
