"""The table of measured layer times, written on the CPU and read by `lab plan`."""

import json

import pytest

from benchmarks import layer_profiles
from lab.cli import main
from labcore.errors import LabError
from warmranks import run_ranks

FLAGS = ("--num-layers 4 --hidden-size 32 --num-attention-heads 2 --seq-length 32 "
         "--max-position-embeddings 32 --vocab-size 256")


def measure(path, gpu):
    import torch

    torch.set_num_threads(1)
    layer_profiles.WARM_UP, layer_profiles.REPEATS = 1, 2
    layer_profiles.main(["--flags", FLAGS, "--device", "cpu", "--gpu", gpu, "--micro-batches", "1",
                         "2", "--output", path])


@pytest.mark.slow
def test_lab_plan_reads_what_was_measured(tmp_path, capsys):
    path, twice = str(tmp_path / "a10.json"), str(tmp_path / "t4.json")
    run_ranks(measure, 1, path, "a10", backend=None)
    table = json.loads((tmp_path / "a10.json").read_text())
    assert len(table["profiles"]) == 2 * 3 * 2
    for row in table["profiles"]:
        assert all(row[part][name] > 0 for part in ("embedding", "layer", "head")
                   for name in ("forward", "backward", "parameters", "activation_bytes"))
        assert (row["head"]["weight"] > 0) == row["split"]
    saved = {row["recompute"]: row["layer"]["activation_bytes"] for row in table["profiles"]}
    assert saved["full"] < saved["selective"] < saved["none"]
    assert table["profiles"][0]["layer"]["parameters"] == 12 * 32**2 + 13 * 32
    (tmp_path / "t4.json").write_text(json.dumps({**table, "profiles": [
        {**row, "gpu": "t4"} for row in table["profiles"]]}))
    joined = str(tmp_path / "table.json")
    layer_profiles.main(["--join", path, twice, "--output", joined])
    assert main(["plan", "--flags", FLAGS, "--cluster", "a10:1x1,t4:1x1", "--global-batch", "4",
                 "--profiles", joined, "--json"]) == 0
    plans = json.loads(capsys.readouterr().out)
    assert all(plan["seconds_per_iteration"] > 0 for plan in plans)


def test_tables_of_two_models_are_not_joined(tmp_path):
    paths = [tmp_path / "one.json", tmp_path / "two.json"]
    for layers, path in enumerate(paths):
        path.write_text(json.dumps({"model": {"layers": layers}, "profiles": []}))
    with pytest.raises(LabError, match=r"--join .*two.json: measured for \{'layers': 1\}, but"):
        layer_profiles.join(list(map(str, paths)))


@pytest.mark.parametrize(("gpu", "product", "why"), [
    ("a1000", "x", "--gpu a1000: .*nearest: a100"), (None, "a CPU", "give --gpu, such as")])
def test_a_gpu_without_a_model_is_named(gpu, product, why):
    with pytest.raises(LabError, match=why):
        layer_profiles._card(gpu, product)
