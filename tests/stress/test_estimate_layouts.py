"""--estimate says what the ranks say: random layouts of up to 16 of them, on one node and more."""

import json
import os
import re
import shlex
import subprocess
import sys
from random import Random

import pytest

from tests.ports import free_port
from virtualgpu.core import stacks

from ..minimegatron.conftest import Run, dataset  # noqa: F401  fixture
from ..virtualgpu.test_estimate import MODEL, V100, estimate

pytestmark = [pytest.mark.stress, pytest.mark.timeout(900)]

LAYERS, HEADS, MICRO_BATCH = 8, 8, 4
SCHEDULES = ("--schedule gpipe", "--schedule 1f1b", "--schedule zb-h1", "interleaved")
OPTIONS = ("--overlap-grad-reduce", "--use-distributed-optimizer", "--timing-log-level 0",
           "--use-flash-attn --attention-dropout 0")
RECOMPUTE = ("", "--recompute-activations",
             "--recompute-granularity full --recompute-method uniform",
             "--recompute-granularity full --recompute-method block --recompute-num-layers 1")


# A rank's node follows from its number.
SEAT = 'export SLURMD_NODENAME=node$((RANK / $0)); exec "$@"'

# The trainer, with an allocator that splits every block, as the estimate assumes.
TRAINER = """
from unittest.mock import patch
from minimegatron.main import main
from virtualgpu.core import memory
from virtualgpu.core.segments import Pool
with patch.object(memory, "Pool", lambda _: Pool(memory.ROUND)):
    main()
"""
CARD = stacks.card_under(V100.name, stacks.default_megatron(V100))


def draw(seed):
    """(ranks, ranks on a node, flags)"""
    random = Random(seed)
    ranks = random.choice((2, 4, 4, 8, 8, 16))
    tp = random.choice([size for size in (1, 2, 4) if ranks % size == 0])
    pp = random.choice([size for size in (1, 2, 4) if ranks // tp % size == 0])
    flags = [f"--tensor-model-parallel-size {tp} --pipeline-model-parallel-size {pp}",
             random.choice(RECOMPUTE), random.choice(("", "--fp16"))]
    if pp > 1:
        schedule = random.choice(SCHEDULES)
        flags.append(f"--num-layers-per-virtual-pipeline-stage {LAYERS // pp // 2}"
                     if schedule == "interleaved" else schedule)
    if tp > 1 and random.random() < 0.5:
        flags.append("--sequence-parallel")
    flags += [option for option in OPTIONS if random.random() < 0.3]
    replicas = ranks // tp // pp
    batch = MICRO_BATCH * replicas * pp * random.randint(1, 3)
    # Replicas alike: a node has whole ones, or a stage's ranks have whole nodes.
    stage = tp * replicas
    per_node = random.choice([size for size in (2, 4, 8, 16) if ranks % size == 0
                              and (size % stage == 0 or stage % size == 0)])
    return ranks, per_node, " ".join(filter(None, [*flags, f"--global-batch-size {batch}"]))


def launch(dataset, status, ranks, per_node, flags):  # noqa: F811
    words = shlex.split(f"{MODEL} {dataset.flags} --lr 1e-4 --train-iters 3 {flags} --device "
                        "virtual:v100 --log-interval 1 --eval-iters 0")
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--no_python", "--nproc_per_node",
         str(ranks), "--master_port", str(free_port()), "bash", "-c", SEAT,
         str(per_node), sys.executable, "-c", TRAINER, *words],
        capture_output=True, text=True, timeout=600,
        env={**os.environ, "RANK_STATUS": str(status)})
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    return Run(done.returncode, done.stdout, done.stderr)


@pytest.mark.parametrize("ranks, per_node, flags", [draw(seed) for seed in range(20)])
def test_one_process_says_what_all_ranks_say(dataset, tmp_path, ranks, per_node, flags):  # noqa: F811
    run = launch(dataset, tmp_path, ranks, per_node, flags)
    # The log rounds to tenths of milliseconds, the ranks' own files do not.
    seconds = json.loads((tmp_path / "0.json").read_text())["milliseconds"] / 1000
    vocab_size = int(re.search(r"\(new size: (\d+)\)", run.out)[1])
    peaks = [float(found) for found in re.findall(r"max allocated: ([\d.]+)", run.out)]
    one = estimate(flags, ranks, CARD, vocab_size, per_node=per_node)
    assert one.seconds == pytest.approx(seconds, rel=0.01)
    mine = [size / 2**20 for size in one.peak]
    assert [min(mine), max(mine)] == pytest.approx([min(peaks), max(peaks)], rel=0.01)
