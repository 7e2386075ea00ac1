"""The record of a job script's run comes from untrusted code: what is refused, and how fast."""

import time

import pytest

from labcore.errors import LabError
from labkit.check.job import resolve
from tests.labkit.check.test_script import MODEL

SOUND = {"components": [{}], "notes": [], "launches": [], "exit": 0, "output": ""}
TWO = {**SOUND, "components": [{"nodes": "2"}]}
LAUNCH = {"program": "torchrun", "arguments": [], "step": 0, "task": 0, "host": "slurmnode1",
          "background": False, "variables": {}}


@pytest.mark.parametrize("forged", [
    {}, {**SOUND, "exit": "0"}, {**SOUND, "launches": 3}, {**SOUND, "output": None},
    {**SOUND, "components": []}, {**SOUND, "launches": [LAUNCH] * 1025},
    {**SOUND, "launches": [{**LAUNCH, "arguments": [1]}]},
    {**SOUND, "launches": [{**LAUNCH, "host": 0}]},
    {**SOUND, "launches": [{**LAUNCH, "folder": 0}]},
    {**SOUND, "launches": [{**LAUNCH, "background": 1}]}, {**SOUND, "launches": [{"program": "x"}]},
    {**SOUND, "launches": [{**LAUNCH, "variables": {"RANK": 0}}]}, {**SOUND, "launches": [None]},
    {**SOUND, "notes": [1]}, {**SOUND, "components": [{"nodes": 2}]},
    {**SOUND, "launches": [{**LAUNCH, "arguments": ["-m"] * 1001}]},
    {**SOUND, "launches": [{**LAUNCH, "arguments": "-m"}]},
    {**SOUND, "launches": [{**LAUNCH, "step": -2}]},
    {**SOUND, "launches": [{**LAUNCH, "task": 1024}]},
    # Slurm would not have started these so.
    {**SOUND, "launches": [{**LAUNCH, "host": "slurmnode2"}]},
    {**SOUND, "launches": [{**LAUNCH, "host": "mars"}]},
    {**TWO, "launches": [{**LAUNCH, "host": "slurmnode3"}]},
    {**TWO, "launches": [{**LAUNCH, "host": "slurmnode2", "step": -1}]},
    {**TWO, "launches": [LAUNCH, {**LAUNCH, "host": "slurmnode2"}]}])
def test_a_forged_record_is_refused(forged):
    with pytest.raises(LabError):
        resolve(forged)


TRAIN = {**LAUNCH, "arguments": ["x/pretrain_gpt.py", *MODEL.split()]}


def test_a_sound_record_is_believed():
    two = [TRAIN, {**TRAIN, "host": "slurmnode2", "task": 1}]
    assert len(resolve({**TWO, "launches": two}).runs) == 1
    assert resolve({**SOUND, "launches": [{**TRAIN, "host": ""}]}).problems == ()


HUGE = [("--nproc_per_node 100000 --nnodes 2", "", "at most 100000 ranks"),
        ("--nproc_per_node 0000000019" + "9" * 5000, "", "a number of at least 1"),
        ("", "--global-batch-size 1000000000000", None),
        ("", "--num-layers 100001", "--num-layers 100001: must be at most 100000"),
        ("", "--hidden-size " + "9" * 4000, "must be at most"),
        ("", "--hidden-size " + "9" * 5000, "invalid int value"),
        ("--nproc_per_node 99991", "--tensor-model-parallel-size 99990", "not divisible"),
        ("--nproc_per_node 2", "--pipeline-model-parallel-size 2 --num-layers 99999 --balance "
         "999999-999999", "adds up to 1999998"),
        ("--nproc_per_node 2", "--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout "
         + "E" + "t*1" * 30_000 + "|L", "--pipeline-model-parallel-layout 'Et*1"),
        ("", "--estimate --device virtual:v100 --plot /root/x.svg", "--plot belongs to --estimate")]


@pytest.mark.parametrize(("options", "flags", "says"), HUGE, ids=range(len(HUGE)))
def test_whatever_numbers_a_script_gives_they_are_read_at_once(options, flags, says):
    """It happens on the trusted side, which nobody watches as closely as a sandbox."""
    arguments = [*options.split(), *TRAIN["arguments"], *flags.split()]
    begun = time.process_time()
    job = resolve({**SOUND, "launches": [{**LAUNCH, "arguments": arguments}]})
    assert time.process_time() - begun < 1
    assert (says or "") in " ".join(job.problems) and len(" ".join(job.problems)) < 5000
    assert (says is None) == (not job.problems)


def test_a_record_full_of_launches_is_read_at_once():
    steps = [{**LAUNCH, "arguments": ["--nnodes=2", *"-m" * 200, "x.py"], "step": step,
              "background": True} for step in range(1024)]
    begun = time.process_time()
    resolve({**SOUND, "launches": steps})
    assert time.process_time() - begun < 5
    with pytest.raises(LabError, match="more than 64 times"):
        resolve({**SOUND, "launches": [{**TRAIN, "step": -1}] * 1024})
