"""`lab estimate`: all layouts of a model on a cluster, the fastest first."""

import json

import pytest

from lab.cli import main
from layout_estimator import cli, search

pytestmark = pytest.mark.slow

CLUSTER = ["--device", "virtual:v100", "--world-size", "4", "--gpus-per-node", "2"]
MODEL = ["--num-layers", "4", "--hidden-size", "256", "--num-attention-heads", "8",
         "--seq-length", "512", "--max-position-embeddings", "512", "--global-batch-size", "16",
         "--vocab-size", "1000"]
FEW = ["--micro-batch-size", "2", "--recompute-granularity", "selective"]


def choices(capsys, *flags):
    assert main(["estimate", *CLUSTER, *MODEL, *flags, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_every_layout_that_can_be_is_costed_and_the_fastest_comes_first(capsys):
    found = choices(capsys, *FEW)
    grids = {(one["tensor"], one["pipeline"], one["data"]) for one in found}
    # Tensor-parallel ranks stay on a node of two cards.
    assert grids == {(1, 1, 4), (1, 2, 2), (1, 4, 1), (2, 1, 2), (2, 2, 1)}
    times = [one["seconds_per_iteration"] for one in found if one["fits"]]
    assert times == sorted(times) and len(times) == len(found)
    assert {one["sharding"] for one in found if one["data"] == 1} == {"no_shard"}
    assert {one["recompute"] for one in found} == {"as given"}


@pytest.mark.slow
def test_no_other_is_faster_and_smaller_than_one_of_the_pareto(capsys):
    found = choices(capsys, "--world-size", "2")  # the test above has the grids of four
    assert len({(one["micro_batch"], one["recompute"]) for one in found}) == 12
    size = {id(one): max(memory["total"] for memory in one["memory"]) for one in found}
    best = [one for one in found if one["pareto"]]
    assert found[0] in best and len(best) > 1
    for one in found:
        beaten = [other for other in found if other["fits"] and size[id(other)] <= size[id(one)]
                  and other["seconds_per_iteration"] < one["seconds_per_iteration"]]
        if one["pareto"]:
            assert not beaten


def test_the_table_and_the_figure_say_virtual_and_progress_is_printed(
        capsys, monkeypatch, tmp_path):
    path = tmp_path / "pareto.svg"
    monkeypatch.setattr(cli, "QUIET", 0.0)
    assert main(["estimate", *CLUSTER, *MODEL, *FEW, "--plot", str(path)]) == 0
    out, err = capsys.readouterr()
    assert err.splitlines()[:2] == ["layouts estimated: 1", "layouts estimated: 2"]
    head, software, _, *lines, _, command = out.splitlines()
    rows = [line for line in lines if line.endswith(tuple("0123456789"))]
    foot = lines[len(rows)]
    assert head.startswith("virtual v100-sxm2-16gb x 4, ") and "modeled, nothing was run" in head
    assert software.startswith("software stack megatron-2021") and "mean error on" in software
    assert len(rows) >= 5 and rows[0].startswith(" *") and "faster and smaller" in foot
    assert command.startswith("  pretrain_gpt.py --device virtual:v100 ")
    assert path.read_text().startswith("<?xml")


@pytest.mark.parametrize("flags, why", [
    (["--device", "virtual:v1000"], "no virtual GPU model is called 'v1000'"),
    (["--hiden-size", "8"], "did you mean --hidden-size"),
    (["--plot", "x.pdf"], "--plot x.pdf: a file that ends in .svg or .png"),
    (["--world-size", "four"], "invalid int value: 'four'"),
    (["--gpus-per-node", "16"], "--gpus-per-node 16: a node with v100-sxm2-16gb GPUs (DGX-1 with "
                                "V100) has 8; nearest: --gpus-per-node 8"),
    (["--world-size", "0"], "--world-size 0: must be a number of at least 1"),
    (["--tensor-model-parallel-size", "4"],
     "--tensor-model-parallel-size 4: a tensor-parallel group stays on one node"),
    (["--plot", "nowhere/x.svg"], "--plot nowhere/x.svg: there is no folder nowhere"),
    (["--device", "virtual"], "VIRTUAL_GPU is not set"),
    (["--data-parallel-sharding-strategy", "optim_grad"],
     "optim_grad: no such strategy; nearest: --data-parallel-sharding-strategy optim_grads"),
])
def test_bad_input_is_refused(capsys, flags, why):
    assert main(["estimate", *CLUSTER, *MODEL, *flags]) == 1
    assert why in capsys.readouterr().err


def test_a_misspelled_flag_is_looked_up_for_one_layout_and_not_for_all(capsys, monkeypatch):
    read, tried = search.read_flags, []
    monkeypatch.setattr(search, "read_flags", lambda flags: (tried.append(flags), read(flags))[1])
    assert main(["estimate", *CLUSTER, *MODEL, "--hiden-size", "8"]) == 1
    assert len(tried) == 1 and "did you mean --hidden-size" in capsys.readouterr().err
    # What only some layouts cannot have ends none of the others.
    assert main(["estimate", *CLUSTER, *MODEL, *FEW, "--sequence-parallel", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) > 1


def test_flags_may_be_written_with_an_equals_sign(capsys):
    found = choices(capsys, "--world-size=2", "-b", "4", "--recompute-granularity=selective",
                    "--data-parallel-sharding-strategy=optim_grads")
    assert {one["sharding"] for one in found} == {"optim_grads"}
    assert {one["world_size"] for one in found} == {2}
    assert {one["micro_batch"] for one in found} == {4}
    assert len(found) == 3


def test_without_flags_it_explains_itself(capsys):
    assert main(["estimate"]) == 0
    assert "--world-size 64" in capsys.readouterr().out
