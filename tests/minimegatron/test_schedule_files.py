"""`--schedule FILE` on several ranks: a bad file is told once, by one rank, in words that help."""

import pytest

FLAGS = ("--pipeline-model-parallel-size 2 --global-batch-size 8 --train-iters 1 --eval-iters 0 "
         "--schedule ")
BAD = {
    "a deadlock": (
        "def schedule(p, m):\n    return ['F0 B0 F1 B1 F2 B2 F3 B3', 'F1 B1 F0 B0 F2 B2 F3 B3']\n",
        "[rank 0] error: --schedule mine.py: deadlock: stage 0 is at B0 (position 1) and waits "
        "for B0 of stage 1"),
    "a line that fails": (
        "def schedule(p, m):\n    return [1 / 0] * p\n",
        "[rank 0] error: mine.py, line 2: ZeroDivisionError: division by zero"),
    "another order on every rank": (
        "import os\ndef schedule(p, m):\n"
        "    numbers = range(m)[::1 - 2 * int(os.environ['RANK'])]\n"
        "    return [' '.join(f'F{k} B{k}' for k in numbers)] * p\n",
        "[rank 0] error: --schedule mine.py: rank 0 and rank 1 read different schedules from it"),
    "a node that cannot read it": (
        "import os\ndef schedule(p, m):\n    assert os.environ['RANK'] == '0', 'no such disk'\n"
        "    return [' '.join(f'F{k} B{k}' for k in range(m))] * p\n",
        "[rank 0] error: on rank 1, not on all: mine.py, line 3: AssertionError: no such disk"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_told_once(train, tmp_path, name):
    text, said = BAD[name]
    (tmp_path / "mine.py").write_text(text)
    run = train(FLAGS + str(tmp_path / "mine.py"), ranks=2, code=1)
    err = run.err.replace(f"{tmp_path}/", "")
    assert said in err and err.count("error:") == 1, err
    assert "Traceback" not in err and " iteration " not in run.out
