"""The nvidia-smi that programs find on their PATH under virtualrun."""

import os
import shutil
import subprocess
from dataclasses import replace

import pytest
import torch

from virtualgpu.core.cards import CARDS
from virtualgpu.launch import command, nvidia_smi
from virtualgpu.launch.cluster import parse
from virtualgpu.launch.ranks import run_ranks
from virtualgpu.launch.settings import Settings
from virtualgpu.smi import job
from virtualgpu.smi.cli import SmiExit

pytestmark = pytest.mark.slow  # ranks that run whole programs

QUERY = "nvidia-smi --query-gpu=index,name,memory.total,memory.used --format=csv,noheader,nounits"


def program():
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    kept = torch.empty(2**30, dtype=torch.uint8, device="cuda")
    text = subprocess.run(QUERY, shell=True, capture_output=True, text=True, check=True).stdout
    assert os.system("nvidia-smi -L > /dev/null") == 0
    assert "NV18" in subprocess.check_output(["nvidia-smi", "topo", "-m"], text=True)
    compiler = f"{os.environ['CUDA_HOME']}/bin/nvcc"  # for which torch has to count as compiled
    assert torch.cuda._is_compiled()
    assert "release" in subprocess.check_output([compiler, "-V"], text=True)
    del kept
    rows = [line.split(", ") for line in text.splitlines()]
    own = rows[int(os.environ["LOCAL_RANK"])]
    free = torch.cuda.device_memory_used() >> 20
    return [row[:3] for row in rows], int(own[3]), free, os.environ["RANK"] in own[0]


def ranks(gpus, nodes, present):
    cluster = parse(gpus, nodes)
    with nvidia_smi.folder_for(cluster) as folder:
        found = run_ranks(cluster, replace(Settings(), smi=folder), program, present)
        for rank in found:
            assert rank.error is None, rank.message
        names = {path.name for path in folder.iterdir()}
        found_mode = (folder / "node0" / "nvidia-smi").stat().st_mode
        assert found_mode & 0o777 == 0o755
    assert not folder.exists() and job.CLUSTER in names
    return found, names


@pytest.mark.parametrize(("present", "nodes"), [([0], 2), (None, 1)])
def test_a_program_sees_the_gpus_of_its_node_and_their_memory(present, nodes):
    found, names = ranks("h100:2", nodes, present)
    name, total = f"{CARDS['h100-80gb'].product} (virtual)", str(CARDS["h100-80gb"].memory >> 20)
    for rank in found:
        rows, used, now, own = rank.value
        assert rows == [["0", name, total], ["1", name, total]] and own
        assert used == now > 1024  # what PyTorch reserved stays
    assert {"rank0.json", "rank1.json"} <= names or present


def test_it_is_gone_after_the_run_and_other_nodes_have_names(tmp_path):
    cluster = parse("a100:2x1,a10:2x1")
    with nvidia_smi.folder_for(cluster) as folder:
        (own,) = job.gpus(folder, 1, None).items()
        assert own[0] == "node1" and [gpu.card.name for gpu in own[1]] == ["a10", "a10"]
        assert own[1][0].process is None and own[1][0].count == 2
        with pytest.raises(SmiExit, match="no such node; nearest: node1"):
            job.gpus(folder, 0, "node7")
    with pytest.raises(SmiExit, match="has ended"):
        job.gpus(folder, 0, None)


def test_the_command_restores_what_it_found(tmp_path, capfd, monkeypatch):
    """Several GPUs, so that the program runs in processes of its own."""
    monkeypatch.setattr("signal.signal", lambda *_: None)
    before, real = os.environ["PATH"], shutil.which("nvidia-smi")
    path = tmp_path / "program.py"
    path.write_text("import subprocess\nsubprocess.run(['nvidia-smi', '-L'])\n"
                    "subprocess.run(['nvidia-smi', '--query-gpu=nme', '--format=csv'])")
    assert command.main(["--gpus", "h100:2", str(path)]) == 0
    text = capfd.readouterr()
    assert text.out.count("GPU 1: NVIDIA H100 80GB HBM3 (virtual) (UUID: GPU-") == 2
    assert 'Field "nme" is not a valid field to query; nearest: name' in text.err
    assert (os.environ["PATH"], shutil.which("nvidia-smi")) == (before, real)
