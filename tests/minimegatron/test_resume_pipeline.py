"""A pipeline resumes to the last bit, dropout on; parts of another pipeline are refused."""

import pytest

from warmranks import run_ranks

from . import resume_steps

pytestmark = pytest.mark.slow

RANKS = 4  # two replicas, where nothing else takes them
LAYERS = "--num-layers 4"
PP2, TP2 = f"{LAYERS} --pipeline-model-parallel-size 2", "--tensor-model-parallel-size 2"
PP4 = f"{LAYERS} --pipeline-model-parallel-size 4"
CHUNKS = f"{PP2} --num-layers-per-virtual-pipeline-stage 1"
BALANCE = f"{PP2} --balance 1-3 --schedule zb-h1"
SAME = [PP2, CHUNKS, f"{PP2} {TP2}", BALANCE]
STAGES, SPLIT = "pipeline_model_parallel_size", "layers_per_chunk"
EVEN, DEALT = "an even split", "--num-layers-per-virtual-pipeline-stage 1"
# (saved, loaded): what differs, there and here
OTHER = {
    (PP2, PP4): (STAGES, 2, 4), (PP2, LAYERS): (STAGES, 2, 1), (CHUNKS, PP4): (STAGES, 2, 4),
    (PP2, BALANCE): (SPLIT, (2, 2), (1, 3), EVEN),
    (PP2, CHUNKS): (SPLIT, (2, 2), (1, 1, 1, 1), EVEN),
    (CHUNKS, PP2): (SPLIT, (1, 1, 1, 1), (2, 2), DEALT),
    (BALANCE, PP2): (SPLIT, (1, 3), (2, 2), "--balance 1-3"),
    (f"{PP2} {TP2}", PP2): ("tensor_model_parallel_size", 2, 1),
}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """{(saved, loaded): per rank, (what the saving run saw, what the other one did)}"""
    loads = {saved: [saved] for saved in SAME}
    for saved, loaded in OTHER:
        loads[saved].append(loaded)
    collected = {}
    for rank in run_ranks(resume_steps.run, RANKS, str(tmp_path_factory.mktemp("saved")),
                          list(loads.items()), timeout=300):
        for (saved, loading), (whole, resumed) in zip(loads.items(), rank, strict=True):
            for loaded, one in zip(loading, resumed, strict=True):
                collected.setdefault((saved, loaded), []).append((whole, one))
    return collected


@pytest.mark.parametrize("layout", SAME)
def test_resuming_a_pipeline_is_exact_with_dropout_on(results, layout):
    """Losses, norms and every rank's weights."""
    ranks = results[layout, layout]
    assert len(ranks) == RANKS
    for whole, resumed in ranks:
        assert whole["iteration"] == 4 and resumed == whole
    assert ranks[-1][0]["loss and norm"][0] > 0


@pytest.mark.parametrize("saved, loaded", OTHER)
def test_a_checkpoint_of_another_pipeline_is_refused_by_every_rank(results, saved, loaded):
    name, there, here, *ways = OTHER[saved, loaded]
    hint = "".join(f"; the checkpoint has {way}" for way in ways)
    ranks = results[saved, loaded]
    assert len(ranks) == RANKS
    for _, refused in ranks:
        assert (f"{name} value from checkpoint ({there}) is not equal to the input argument value "
                f"({here}){hint}. [") in refused["error"]
