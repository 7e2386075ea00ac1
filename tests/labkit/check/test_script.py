"""A job script is checked by what it would run."""

from pathlib import Path

import pytest

from labcore import shipping
from labkit import check
from labkit.check.checks import Failed

MODEL = ("--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 64 "
         "--max-position-embeddings 64 --micro-batch-size 4 --train-iters 5 --lr 1e-3 "
         "--data-path $LAB_HOME/data/x --vocab-file v --merge-file m")
TRAINER = "$LAB_HOME/megatron/Megatron-LM/pretrain_gpt.py"
MEET = "--master_addr $MASTER_ADDR --master_port 6000"
SHEBANG = "#!/bin/bash\n"
TWO_NODES = "#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=1\n"
FIRST = "MASTER_ADDR=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1)\n"


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("LAB_HOME", str(tmp_path))
    shipping.make_workspace(tmp_path)
    return tmp_path


@pytest.fixture
def job(home):
    def write(text: str):
        (home / "code" / "mine.sh").write_text(text)
        return check.script("code/mine.sh", given=None)

    return write


def torchrun(options: str, launcher: str = "torchrun") -> str:
    return f"{launcher} --nproc_per_node 2 {options} {TRAINER} {MODEL}\n"


IN_QUOTES = f"srun bash -c 'torchrun --nnodes 2 --nproc_per_node 2 --node_rank $SLURM_NODEID {MEET}"
RIGHT = [
    SHEBANG + TWO_NODES + "export " + FIRST + f"{IN_QUOTES} {TRAINER} {MODEL}'\n",
    SHEBANG + "#SBATCH -N 2 # two\n#SBATCH -n2\n" + FIRST + "srun " + torchrun(
        "--nnodes=$SLURM_NNODES --rdzv-backend=c10d --rdzv-id=$SLURM_JOB_ID "
        "--rdzv-endpoint=$MASTER_ADDR:6000"),
    SHEBANG + "#SBATCH --nodes 2\nexport " + FIRST + "srun -N 2 --ntasks-per-node=1 -l bash -c \""
    + torchrun(f"--nnodes 2 --node_rank \\$SLURM_NODEID {MEET}",
               "python -u -m torch.distributed.launch").strip() + "\"\n",
    SHEBANG + TWO_NODES + FIRST + "cat > $TMPDIR/tasks <<END\n0,1 torchrun --node_rank %t "
    f"--nnodes 2 --nproc_per_node 2 {MEET} {TRAINER} {MODEL}\nEND\n"
    "srun --multi-prog $TMPDIR/tasks\nrm $TMPDIR/tasks\n",
    SHEBANG + TWO_NODES + FIRST + "export MASTER_ADDR\ngo() { torchrun --nnodes 2 "
    f"--nproc_per_node 2 --node_rank $SLURM_NODEID {MEET} {TRAINER} {MODEL}; }}\n"
    "export -f go\nsrun bash -c go\n",
    SHEBANG + TWO_NODES + FIRST + "srun bash -s $MASTER_ADDR <<'END'\nMASTER_ADDR=$1\n"
    f"exec torchrun --nnodes 2 --nproc_per_node 2 --node_rank $SLURM_NODEID {MEET} {TRAINER} "
    f"{MODEL}\nEND\n",
    SHEBANG + TWO_NODES + FIRST + "for node in 0 1; do srun -N1 -n1 true & done; wait\n"
    "cat > run.sh <<'END'\n"
    "exec torchrun --node_rank $SLURM_NODEID \"$@\"\nEND\n"
    "srun bash run.sh --nnodes 2 --nproc_per_node 2 " + f"{MEET} {TRAINER} {MODEL}\n",
    SHEBANG + "#SBATCH --nodes=2 --ntasks-per-node=2\n" + FIRST
    + "export MASTER_ADDR MASTER_PORT=6000 WORLD_SIZE=4\n"
    "srun bash -c 'RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID exec python -u "
    f"{TRAINER} {MODEL}'\n",
    # static, by an end point; everything by its full path
    SHEBANG + TWO_NODES + FIRST + "/usr/bin/srun bash -c '/opt/x/bin/torchrun --node_rank "
    "$SLURM_NODEID \"$@\"' torchrun --nnodes 2 --nproc_per_node 2 "
    f"--rdzv_endpoint $MASTER_ADDR:6000 {TRAINER} {MODEL}\n",
    # what it exports, and a port that Python works out
    SHEBANG + TWO_NODES + "A=$(hostname)\n"
    "P=$(python3.11 -c 'print(6000 + 1)')\nsrun --export=ALL,MASTER_ADDR=$A,PORT=$P bash -c '"
    "torchrun --nnodes 2 --nproc_per_node 2 --node_rank $SLURM_NODEID --master_addr $MASTER_ADDR "
    f"--master_port $PORT {TRAINER} {MODEL}'\n",
    # one srun per node, side by side
    SHEBANG + TWO_NODES + FIRST + "rank=0\nfor node in $(scontrol show hostnames); do\n"
    "srun -N1 -n1 -w $node " + torchrun(f"--nnodes 2 --node_rank $rank {MEET}").strip()
    + " &\nrank=$((rank + 1))\ndone\nwait\n",
    # torchrun's variables
    SHEBANG + TWO_NODES.replace("--ntasks", "--tasks") + FIRST + "export PET_NNODES=2 "
    "PET_RDZV_BACKEND=c10d PET_RDZV_ENDPOINT=$MASTER_ADDR:6000\nsrun " + torchrun(""),
]


@pytest.mark.parametrize("text", RIGHT)
def test_however_a_right_script_is_written_it_is_right(job, text):
    seen = job(text)
    assert (seen.problems, seen.nodes, seen.ranks_per_node, seen.world_size) == ((), 2, 2, 4)
    assert seen.flags.micro_batch_size == 4 and seen.flags.global_batch_size == 16
    assert seen.flags.data_path == "$LAB_HOME/data/x"


NODE_RANK = TWO_NODES + FIRST + IN_QUOTES.replace(MEET, "{meet}") + f" {TRAINER} {MODEL}'\n"


def meeting(at: str) -> str:
    return NODE_RANK.replace("MASTER_ADDR=", "export MASTER_ADDR=").replace("{meet}", at)


WRONG = [
    (meeting("--master_addr slurmnode2 --master_port 6000"),
     "address is slurmnode2, but rank 0 runs on slurmnode1"),
    (meeting("--master_addr $SLURM_JOB_NODELIST --master_port 6000"), "address is slurmnode[1-2],"),
    (TWO_NODES + "export WORLD_SIZE=2\nsrun bash -c 'RANK=$SLURM_PROCID python "
     f"{TRAINER} {MODEL}'\n", "MASTER_ADDR is not set and MASTER_PORT not set"),
    (meeting(MEET).replace("\n", "\r\n"), "as on Windows"),
    (TWO_NODES + FIRST + "srun -w $MASTER_ADDR -N1 -n1 " + torchrun(f"--nnodes 2 {MEET}").strip()
     + "\nsrun -r1 -N1 -n1 " + torchrun(f"--nnodes 2 --node_rank 1 {MEET}"), "starts on 1 node(s)"),
    ("srun true &\n" + torchrun(""), "put `wait` at its end"),
    (TWO_NODES + FIRST + torchrun(f"--nnodes 2 --node_rank 0 {MEET}"), "starts on 1 node(s)"),
    (TWO_NODES + FIRST + "srun " + torchrun(f"--nnodes 2 --node_rank 0 {MEET}"),
     "the nodes have --node_rank 0, 0"),
    (TWO_NODES + FIRST + "srun " + torchrun(f"--nnodes 2 --node_rank $SLURM_NODEID {MEET}"),
     "--node_rank 0, 0"),
    (TWO_NODES + "srun " + torchrun(""), "2 separate training runs"),
    (TWO_NODES.replace("=1", "=2") + FIRST + "srun " + torchrun(f"--nnodes 2 {MEET}"),
     "4 times on 2 node(s)"),
    # The job's own number of tasks wins, as a real srun says in a warning.
    (TWO_NODES.replace("=1", "=2") + FIRST + "srun --ntasks-per-node=1 "
     + torchrun(f"--nnodes 2 {MEET}"), "4 times on 2 node(s): start it once"),
    (TWO_NODES + FIRST + "srun " + torchrun("--nnodes 2 --rdzv_backend c10d --rdzv_endpoint "
                                            "localhost:6000"), "address is localhost"),
    (TWO_NODES + "srun bash -c 'torchrun --nnodes 2 --nproc_per_node 2 "
     f"--node_rank $SLURM_NODEID {TRAINER} {MODEL}'\n", "address is 127.0.0.1"),
    ("# SBATCH --nodes=2\n" + torchrun(""), "treats '# SBATCH --nodes=2' as a comment"),
    ("set -e\n#SBATCH --nodes=2\n" + torchrun(""), "come before the first command"),
    ("#SBATCH --node=2\n" + torchrun(""), "did you mean --nodefile or --nodelist or --nodes?"),
    ("#SBATCH --nodes=two\n" + torchrun(""), "'two' is not a number"),
    (torchrun("") + "exit 3\n", "exit code 3"),
    (torchrun("").replace("--num-layers 2", "--num-layer 2"), "did you mean --num-layers?"),
]


@pytest.mark.parametrize(("text", "says"), WRONG, ids=[says for _, says in WRONG])
def test_what_would_fail_is_said(job, text, says):
    assert says in " / ".join(job(SHEBANG + text).problems)


@pytest.mark.slow
def test_a_script_that_does_not_end_is_stopped(job, monkeypatch):
    monkeypatch.setattr("labkit.check.record.SECONDS", 5)
    text = torchrun("") + "sleep() { command sleep 0; }; while true; do :; done\n"
    problems = " / ".join(job(SHEBANG + text).problems)
    assert "the script was still running after 5 seconds" in problems


def test_a_script_without_shebang_is_a_problem(job):
    assert "begin with #!/bin/bash" in job(torchrun("")).problems[0]


NO_RUN = [
    ("echo hello\n", "does not start the trainer"),
    ("srun torchrun other.py\n", "does not start the trainer"),
    ("torchrun --nproc_per_node=$RANKS x/pretrain_gpt.py\n", "a variable empty or misspelled"),
    ("torchrun --nproc_per_node 0 x/pretrain_gpt.py\n", "number of at least 1"),
    ("torchrun --nproc 2 x/pretrain_gpt.py\n", "no option --nproc"),
    ("torchrun --nnodes\n", "needs a value"), ("torchrun\n", "given no program to run"),
    ("srun -n 999999 torchrun x/pretrain_gpt.py\n", "999999 tasks"),
    ("srun -N 2 torchrun x/pretrain_gpt.py\n", "only 1 allocated"),
    ("srun -w node9 torchrun x/pretrain_gpt.py\n", "not a node of this job; nearest: slurmnode1"),
    ("env -i PATH=$PATH srun torchrun x/pretrain_gpt.py\n", "cannot find its job"),
    ("torchrun --master_port 99999 x/pretrain_gpt.py\n", "at most 65535"),
    ("torchrun --nnodes 2 --rdzv_backend c10d --rdzv_id \"$ID\" x/pretrain_gpt.py\n",
     "every node would generate its own ID; is a variable empty or misspelled?"),
    ("torchrun --master_port PORT x/pretrain_gpt.py\n", "a number"),
    ("srun torchrun x/pretrain_gpt.py &\n", "put `wait` at its end"),
    ("#SBATCH --export=NONE\ntorchrun $LAB_HOME/x/pretrain_gpt.py ${USER:?is gone}\n", "is gone"),
    ("export A=1\nsrun --export=NONE bash -c 'torchrun x/pretrain_gpt.py ${A:?is gone}'\n",
     "is gone"),
    ("export SLURM_NNODES=x\nsrun torchrun x/pretrain_gpt.py\n", "'x' is not a number of nodes"),
    ("#SBATCH --export==x\ntrue\n", "does not start the trainer"),
    ("srun --ntask 2 torchrun x/pretrain_gpt.py\n", "did you mean --ntasks"),
    ("echo nonsense > $LAB_HOME/../record\n", "wrote into the record"),
    # Python runs something else than the trainer.
    ("python -V x/pretrain_gpt.py --lr 1\n", "does not start the trainer"),
    ("python -cexit x/pretrain_gpt.py --lr 1\n", "does not start the trainer"),
    ("python -mmine/pretrain_gpt.py --lr 1\n", "does not start the trainer"),
    ("torchrun x/pretrain_gpt.py\nyes '' | head -c 1000001 >> $LAB_HOME/../record\n",
     "is too long"),
]


@pytest.mark.parametrize(("text", "says"), NO_RUN, ids=[says for _, says in NO_RUN])
def test_a_script_that_trains_nothing_fails_with_the_reason(job, text, says):
    with pytest.raises(Failed) as caught:
        job(SHEBANG + text)
    assert says in str(caught.value)


def test_the_flags_of_two_trainings_are_nobodys(job):
    result = job(SHEBANG + torchrun("") * 2)
    assert len(result.runs) == 2
    with pytest.raises(Failed, match="2 times; the exercise asks for one run"):
        _ = result.flags


def test_nothing_of_the_workspace_is_touched(home, job):
    (home / "megatron" / "logs" / "old.txt").write_text("kept")
    job(SHEBANG + "rm -rf $LAB_HOME/megatron/logs data; echo x > code/new.sh\n" + torchrun(""))
    assert (home / "megatron" / "logs" / "old.txt").exists() and (home / "data").is_dir()
    assert not (home / "code" / "new.sh").exists()


@pytest.mark.parametrize(("path", "says"), [
    ("code/none.sh", "run the cell that writes it"), ("../outside.sh", "not a file in"),
    ("/etc/passwd", "not a file in"), ("code", "not a file in")])
def test_a_script_that_is_not_there_is_named(home, path, says):
    (home.parent / "outside.sh").write_text(SHEBANG)
    with pytest.raises(Failed, match=says):
        check.script(path, given=None)


def test_a_large_file_is_no_script(home):
    (home / "code" / "big.sh").write_bytes(b"#" * 70_000)
    with pytest.raises(Failed, match="64 KiB"):
        check.script("code/big.sh", given=None)


@pytest.mark.slow
def test_shipped_scripts_have_no_problems(home):
    for path in sorted((home / "code").glob("*.sh")):
        if "#SBATCH" not in path.read_text() or path.stem.startswith("case_"):
            continue  # a helper, which jobs call, or a broken job of lab 03
        if path.name == "my_trainer.sh":
            result = check.program(f"code/{path.name}", "my_trainer.py")
        else:
            result = check.script(f"code/{path.name}", given=None)
        assert result.problems == result.notes == () and result.world_size >= 2


def test_the_classic_script_is_understood(home):
    text = (Path(__file__).parents[2] / "jobs" / "classic.sh").read_text()
    (home / "code" / "classic.sh").write_text(text)
    result = check.script("code/classic.sh", given=None)
    assert result.problems == () and result.world_size == 4
    nccl, cpus = result.notes
    assert "--gpus-per-node=2" in nccl and "--cpus-per-task=32" in cpus
