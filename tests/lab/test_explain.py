"""`lab explain`: what the flags of a foreign script mean here."""

import io

import pytest

from lab import explain
from lab.cli import main

SCRIPT = r"""#!/bin/bash
#SBATCH --nodes=2
DISTRIBUTED_ARGS="--nproc_per_node 8 --nnodes $NNODES --node-rank $RANK --master_port 6000"
MODEL=(
    --num-layers 24   # not --num-layers 48
    --hiden-size 2048
    --tokenizer-type Llama2Tokenizer
    --tokenizer-model ${TOKENIZER}
    --norm-epsilon 1.0e-05 --context-parallel-size 1 --expert-model-parallel-size $EP
    --swiglu
    --tensor-model-parallel-size "$TP"
)
DATA="
    --data-path 0.3 $A 0.7 $B \
    --split 949,50,1
"
srun -l --mpi=none --export=ALL torchrun ${DISTRIBUTED_ARGS} pretrain_gpt.py ${MODEL[@]} \
    $DATA --lr=1e-4 --no-mmap-bin-files --log-interval two --save "$SAVE" 2>&1 | tee --append a.log
"""
VERDICTS = {
    "--num-layers": ("24", "accepted", "transformer layers"),
    "--hiden-size": ("2048", "unknown", "did you mean --hidden-size?"),
    "--tokenizer-type": ("Llama2Tokenizer", "refused", "invalid choice: 'Llama2Tokenizer'"),
    "--tokenizer-model": ("${TOKENIZER}", "accepted", "folder with the tokenizer.json"),
    "--norm-epsilon": ("1.0e-05", "refused", "here it is called --layernorm-epsilon"),
    "--context-parallel-size": ("1", "no effect", "1 is what happens anyway"),
    "--expert-model-parallel-size": ("$EP", "refused", "; no effect with 1"),
    "--swiglu": ("", "accepted", "SwiGLU"),
    "--tensor-model-parallel-size": ("$TP", "accepted", "tensor-parallel size"),
    "--data-path": ("0.3 $A 0.7 $B", "refused", "a blend of several data sets"),
    "--split": ("949,50,1", "accepted", "proportions"),
    "--lr": ("1e-4", "accepted", "peak learning rate"),
    "--no-mmap-bin-files": ("", "no effect", "always memory-mapped"),
    "--log-interval": ("two", "refused", "invalid int value: 'two'"),
    "--save": ("$SAVE", "accepted", "folder to save checkpoints in"),
}


def test_each_flag_has_a_verdict_and_launchers_have_none():
    explained = explain.explain(SCRIPT)
    assert [flag.name for flag in explained] == list(VERDICTS)
    for flag in explained:
        value, verdict, meaning = VERDICTS[flag.name]
        assert (flag.value, flag.verdict) == (value, verdict)
        assert meaning in flag.meaning


def test_the_table_begins_with_what_needs_attention(capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO(SCRIPT))
    assert main(["explain", "-"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("--tokenizer-type Llama2Tokenizer  refused    invalid choice")
    assert lines[-1] == "15 flags: 7 accepted, 2 no effect, 1 unknown, 5 refused"
    assert max(map(len, lines)) <= 100


def test_the_other_program_has_its_own_flags():
    flags = explain.explain("python tools/preprocess_data.py --input a --vocab v --workers $N "
                            "--partitions 1 && echo --done")
    assert [(flag.name, flag.verdict) for flag in flags] == [
        ("--input", "accepted"), ("--vocab", "refused"), ("--workers", "accepted"),
        ("--partitions", "no effect")]


@pytest.mark.parametrize(("text", "says"), [
    ("echo hello\n", "no flags of pretrain_gpt.py or preprocess_data.py"), (None, "No such file")])
def test_a_file_without_flags_is_named(tmp_path, capsys, text, says):
    path = tmp_path / "run.sh"
    if text is not None:
        path.write_text(text)
    assert main(["explain", str(path)]) == 1
    assert f"lab: error: {path}: " in (error := capsys.readouterr().err) and says in error
