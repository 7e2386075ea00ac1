"""A pipeline resumes to the last bit, dropout on, and so does another pipeline from its files."""

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
OTHER = [  # (saved, loaded); test_resharding.py has the others
    (PP2, LAYERS), (CHUNKS, PP4), (BALANCE, PP2), (f"{PP2} {TP2}", PP2)]


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
def test_another_pipeline_loads_the_checkpoint_to_the_last_bit(results, saved, loaded):
    """The whole model, wherever its parts are; training goes on as in the pipeline that saved."""
    ranks = results[saved, loaded]
    assert len(ranks) == RANKS
    for whole, resumed in ranks:
        assert resumed["whole"] == whole["whole"] and resumed["iteration"] == 4
    whole, resumed = ranks[-1]
    assert resumed["loss and norm"] == pytest.approx(whole["loss and norm"], rel=1e-5)
