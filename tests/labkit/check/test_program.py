"""A job script that starts another program than the trainer, and how it ends."""

import pytest
from torch.distributed.run import get_args_parser

from labkit import check
from labkit.check import options, torchrun
from labkit.check.checks import Failed

from .test_script import FIRST, SHEBANG, TWO_NODES, home  # noqa: F401

pytestmark = pytest.mark.slow
REQUEUE = (SHEBANG + TWO_NODES + FIRST + "status=0\nsrun torchrun --nnodes 2 --nproc_per_node 2 "
           "--rdzv_backend c10d --rdzv_endpoint $MASTER_ADDR:6000 code/mine.py --x || status=$?\n"
           "if [ -e saved/stopped ]; then scontrol requeue $SLURM_JOB_ID; fi\nexit $status\n")


@pytest.fixture
def program(home):  # noqa: F811
    def write(text: str, **options):
        (home / "code" / "mine.sh").write_text(text)
        return check.program("code/mine.sh", "mine.py", **options)

    return write


def test_a_script_may_start_another_program(program):
    job = program(REQUEUE)
    assert (job.nodes, job.ranks_per_node, job.run.backend) == (2, 2, "c10d")
    assert job.run.arguments == ("--x",) and job.run.flags is None
    assert (job.requeues, job.status) == (False, 0)
    with pytest.raises(Failed, match="does not start pretrain"):
        check.program("code/mine.sh", "pretrain_gpt.py")


@pytest.mark.parametrize(("ends", "writes", "requeues"), [
    (0, [], False), (3, [], False), (1, ["saved/stopped"], True), (0, ["saved/stopped"], True)])
def test_a_script_is_told_how_its_program_ended(home, program, ends, writes, requeues):  # noqa: F811
    job = program(REQUEUE, ends=ends, writes=writes)
    assert (job.requeues, job.status) == (requeues, ends)
    assert not (home / "saved").exists()


LOOP = (SHEBANG + FIRST + 'for name in "$@"; do torchrun --standalone --nproc_per_node 2 '
        'code/mine.py --text "$name" || failed=$?; done\nexit ${failed:-0}\n')


@pytest.mark.parametrize(("ends", "status"), [({}, 0), ({"wiki": 3}, 3), ({"news": 4, "s": 5}, 4)])
def test_several_programs_may_end_in_different_ways(program, ends, status):
    job = program(LOOP, arguments=["wiki", "books", "news"][2 * ("news" in ends):], ends=ends,
                  times=None)
    assert job.status == status
    if "wiki" in ends:
        assert [run.arguments[1] for run in job.runs] == ["wiki", "books", "news"]
        with pytest.raises(Failed, match=r"starts mine[.]py 3 times"):
            program(LOOP, arguments=["wiki", "books", "news"], ends=ends)


def test_the_environment_does_not_show_how_the_program_ends(program):
    hidden = REQUEUE.replace("status=0\n", """
export LAB_RECORD_EXIT=0 LAB_RECORD_WRITES= LAB_HOME=/nowhere
seen="$(srun bash -c env; env; python3 -c 'import os; print(os.environ)')"
case "$seen" in *saved/stopped*|*/record*) exit 9;; esac
status=0
""").replace("saved/stopped ]", "$SLURM_SUBMIT_DIR/saved/stopped ]")
    job = program(hidden, ends=1, writes=["saved/stopped"])
    assert (job.requeues, job.status) == (True, 1)


def test_a_script_gets_its_arguments_and_finds_files(program):
    job = program(REQUEUE.replace("--x", '"$@"'), arguments=["--steps", "7 8"])
    assert job.run.arguments == ("--steps", "7 8")
    assert program(REQUEUE, ends=1, finds=["saved/stopped"]).requeues
    assert not program(REQUEUE.replace("status=0", "rm -f saved/stopped; status=0"), ends=1,
                       finds=["saved/stopped"]).requeues
    with pytest.raises(Failed, match="it deletes what earlier runs saved in the folder saved"):
        program(REQUEUE.replace("status=0", "rm -rf saved; status=0"), finds=["saved/stopped"])


@pytest.mark.parametrize(("words", "requeues"), [
    ("--quiet requeue $SLURM_JOB_ID", True), ("-Q -M here requeue $SLURM_JOB_ID", True),
    ("requ 7,$SLURM_JOB_ID", True), ("REQUEUE Incomplete $SLURM_JOB_ID", True),
    ("requeue 7,8", False), ("-M requeue", False)])
def test_a_requeue_may_be_written_in_all_of_scontrols_ways(program, words, requeues):
    job = program(REQUEUE.replace("requeue $SLURM_JOB_ID", words), writes=["saved/stopped"])
    assert job.requeues == requeues


@pytest.mark.parametrize("begin", ["cat > x.sh <<EOF", "cat <<'EOF' > x.sh", "cat <<-\\EOF",
                                   'cat <<"A.1" <<EOF'])
def test_the_text_of_a_here_document_is_no_option_of_this_job(program, begin):
    text = "#SBATCH --nodes=64\nA.1\n#SBATCH --nodes=64\nEOF\n"
    job = program(REQUEUE.replace("status=0\n", f"{begin}\n{text}status=0\n", 1))
    assert (job.nodes, job.problems) == (2, ())


@pytest.mark.parametrize("begin", ["cat <<<EOF", "echo $((1<<2))", "echo a"])
def test_options_behind_a_command_are_named(program, begin):
    late = REQUEUE.replace("status=0\n", f"{begin} || true\n#SBATCH --mem=1\nstatus=0\n", 1)
    with pytest.raises(Failed, match="come before the first command"):
        program(late)


@pytest.mark.parametrize(("old", "new", "says"), [
    ("status=0\n", "rm -rf saved/*; status=0\n", "it deletes what earlier runs saved"),
    ("status=0\n", "find saved -name '*.pt' -delete; status=0\n", "it deletes what earlier runs"),
    ("status=0\n", "sbatch code/mine.sh; status=0\n", "jobs multiply"),
    ("status=0\n", 'scancel "$SLURM_JOB_ID"; status=0\n', "it cancels its own job"),
    ("exit $status", "scancel --me; exit $status", "it cancels its own job"),
    ("exit $status", "scancel -f -n mine; exit $status", "it cancels its own job"),
    ("status=0\n", "scancel -u $USER -t RUNNING; status=0\n", "it cancels its own job"),
    ("exit $status", "scontrol release $SLURM_JOB_ID; scontrol hold $SLURM_JOB_ID; exit $status",
     "until somebody releases it"),
    ("status=0\n", "scontrol suspend $SLURM_JOB_ID; status=0\n", "until somebody resumes it"),
    ("exit $status", "id=$(sbatch --parsable code/mine.sh); scancel $((id + 1)); exit $status",
     "jobs multiply"),
    (TWO_NODES, TWO_NODES + "#SBATCH --no-requeue\n", "scontrol requeue is refused"),
    ("exit $status", "scancel --signal=KILL $SLURM_JOB_ID", "it cancels its own job"),
    ("exit $status", "scancel -s SIGKILL $SLURM_JOB_ID", "it cancels its own job"),
    ("exit $status", "scancel -s9 $SLURM_JOB_ID", "it cancels its own job"),
    ("scontrol requeue $", "scontrol requeuehold $", "until somebody releases it"),
    ("exit $status", "scontrol update JobId=$SLURM_JOB_ID TimeLimit=1", "scontrol update"),
    (TWO_NODES, TWO_NODES + "#SBATCH --array=0-99\n", "--array=0-99: Slurm runs the script once"),
    (TWO_NODES, TWO_NODES + "#SBATCH -H\n", "--hold: the job waits"),
    (TWO_NODES, TWO_NODES + "#SBATCH --begin=now+1day\n", "does not start before that"),
    (TWO_NODES, TWO_NODES + "#SBATCH -d afterok:1\n", "waits for other jobs"),
    (TWO_NODES, TWO_NODES + "#SBATCH --test-only\n", "submits nothing")])
def test_a_script_that_does_something_else_to_jobs_or_files_is_refused(program, old, new, says):
    with pytest.raises(Failed, match=f"This would go wrong.*{says}"):
        program(REQUEUE.replace(old, new), ends=1, writes=["saved/stopped"])


@pytest.mark.parametrize(("old", "new"), [
    ("status=0\n", "rm -f saved/stopped; status=0\n"), ("exit $status", "scancel 99; exit $status"),
    ("exit $status", "scancel -s USR1 $SLURM_JOB_ID; exit $status"),
    ("exit $status", "scancel --signal 19 $SLURM_JOB_ID; exit $status"),
    ("exit $status", "scontrol show job $SLURM_JOB_ID; exit $status"),
    ("status=0\n", "scontrol hold $SLURM_JOB_ID; scontrol release $SLURM_JOB_ID; status=0\n"),
    ("status=0\n", "id=$(sbatch --parsable -H --wrap true) && scancel $id; status=0\n"),
    ("status=0\n", "sbatch --test-only code/mine.sh; status=0\n"),
    ("status=0\n", "scancel -u $USER -t PENDING; status=0\n"),
    ("exit $status", "scancel $SLURM_JOB_ID.0; exit $status"),
    ("exit $status", "scontrol update JobId=$SLURM_JOB_ID Comment=stopped; exit $status"),
    ("exit $status", "scontrol update JobId=99 TimeLimit=1; exit $status"),
    (TWO_NODES, TWO_NODES + "#SBATCH --dependency=singleton --begin=now\n")])
def test_what_leaves_the_job_and_its_files_alone_is_not(program, old, new):
    assert program(REQUEUE.replace(old, new), ends=1, writes=["saved/stopped"]).requeues


@pytest.mark.parametrize(("lines", "holds"), [
    ("#SBATCH --requeue\n#SBATCH --no-requeue\n", False),
    ("#SBATCH --no-requeue\n#SBATCH --requeue\n", True)])
def test_of_two_opposite_options_the_later_holds(program, lines, holds):
    job = program(REQUEUE.replace(TWO_NODES, TWO_NODES + lines))
    assert ("requeue" in job.directives) == holds != ("no-requeue" in job.directives)


def test_two_jobs_have_ids_of_their_own(program):
    ids = REQUEUE.replace(":6000", ":$((6000 + SLURM_JOB_ID)) --rdzv_id $SLURM_JOB_ID")
    first, second = (program(ids, job_id=number, writes=["saved/stopped"]) for number in (1, 77))
    assert (first.run.port, first.run.rdzv_id, first.requeues) == ("6001", "1", True)
    assert (second.run.port, second.run.rdzv_id, second.requeues) == ("6077", "77", True)
    another = ids.replace("requeue $SLURM_JOB_ID", "requeue 1")
    assert not program(another, job_id=77, writes=["saved/stopped"]).requeues
    assert program(f"{SHEBANG}torchrun --standalone mine.py\n").run.port == "0"


def test_all_options_of_torchrun_are_known():
    for action in get_args_parser()._actions:
        names = {option.lstrip("-").replace("-", "_") for option in action.option_strings}
        known = torchrun.FLAGS if action.nargs == 0 else torchrun.VALUED
        assert names - {"h", "help"} <= known


@pytest.mark.parametrize(("old", "new", "says"), [
    ("exit $status", "exit 7", "exit code 7"), ("mine.py", "other.py", "does not start mine.py"),
    ("$MASTER_ADDR:6000", "localhost:6000", "address is localhost"),
    ("exit $status", "srun torchrun --nnodes 2 --rdzv_backend c10d --rdzv_endpoint "
     "$MASTER_ADDR:6000 code/mine.py", "starts mine.py 2 times")])
def test_a_program_that_would_go_wrong_is_no_job(program, old, new, says):
    with pytest.raises(Failed, match=says):
        program(REQUEUE.replace(old, new), ends=1)


@pytest.mark.parametrize(("start", "folder"), [
    ("torchrun", "$LAB_HOME/code"), ("cd $LAB_HOME; torchrun", "$LAB_HOME"),
    ("srun torchrun", "$LAB_HOME/code"), ("srun --chdir=$LAB_HOME/data torchrun", "$LAB_HOME/data"),
    ("#SBATCH --chdir=/dli/data\nsrun torchrun", "$LAB_HOME/data"),
    ("#SBATCH --chdir=../data\nsrun torchrun", "$LAB_HOME/data"),
    ("cd $SLURM_SUBMIT_DIR/..; srun bash -c 'cd data && exec torchrun \"$@\"' -",
     "$LAB_HOME/data")])
def test_a_relative_path_begins_in_the_folder_where_the_program_starts(program, start, folder):
    run = program(f"{SHEBANG}{start} mine.py x ./y/../z $LAB_HOME/w /etc/v\n",
                  submitted_from="code").run
    assert [run.absolute(path) for path in (run.trainer, *run.arguments)] == [
        f"{folder}/mine.py", f"{folder}/x", f"{folder}/z", "$LAB_HOME/w", "/etc/v"]


@pytest.mark.parametrize(("start", "says"), [
    ("#SBATCH --chdir=code\ntorchrun", "#SBATCH --chdir=code: there is no such folder when sbatch "
     "is called in code, so Slurm runs the script in /tmp: give an absolute path (/dli is the "
     "workspace)"),
    ("#SBATCH -D " + "x" * 300 + "\ntorchrun", "there is no such folder"),
    ("srun -D data torchrun", "--chdir=data: there is no such folder"),
    ("srun --chdir=" + "x" * 300 + " torchrun", "there is no such folder")],
    ids=["sbatch", "long", "srun", "long srun"])
def test_a_folder_that_does_not_exist_is_told(program, start, says):
    text = f"{SHEBANG}{start} mine.py ../data/x\n"
    with pytest.raises(Failed) as caught:
        program(text, submitted_from="code")
    assert says in str(caught.value)


def test_a_folder_that_may_not_be_entered_is_told(program, monkeypatch):
    monkeypatch.setattr(options.os, "access", lambda path, mode: path != "/root")
    with pytest.raises(Failed, match="--chdir=/root: you may not enter this folder when sbatch is "
                                     "called in the workspace"):
        program(f"{SHEBANG}#SBATCH --chdir=/root\ntorchrun mine.py\n")


@pytest.mark.parametrize("sets", ["SLURM_STEP_ID=0", "SLURM_STEP_ID=x", "SLURM_PROCID=x"])
def test_a_script_may_set_the_variables_of_a_step(program, sets):
    job = program(f"{SHEBANG}export {sets}\ntorchrun mine.py\n")
    assert not job.run.by_srun and job.problems == ()
    with pytest.raises(Failed, match="put `wait` at its end"):
        program(f"{SHEBANG}export {sets}\ntorchrun mine.py & sleep 0.1\n")


def test_a_slow_command_does_not_stand_in_for_wait(program):
    with pytest.raises(Failed, match="put `wait` at its end"):
        program(f"{SHEBANG}torchrun mine.py & python -c 'import time; time.sleep(0.7)'\n")


def test_a_variable_that_the_shell_does_not_expand_is_not_the_workspace(program):
    run = program(f"{SHEBANG}torchrun mine.py '$LAB_HOME/x'\n").run
    assert run.absolute(run.arguments[0]) == r"$LAB_HOME/\$LAB_HOME/x"
