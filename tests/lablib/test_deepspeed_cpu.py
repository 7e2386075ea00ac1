"""deepspeed_cpu: nothing is compiled, seeds of numpy's kind are taken, configs are checked."""

import json
import random
import sys

import numpy as np
import pytest
import torch
import torch.distributed as dist

from labcore.errors import LabError
from lablib import deepspeed_cpu, replicas
from warmranks import run_ranks


def test_collectives_start_without_a_compiled_operator():
    """The place where DeepSpeed looks it up."""
    backend = sys.modules["deepspeed.comm.torch"].TorchBackend
    assert backend.__init__.__globals__["build_shm_op"]() is None


def test_seeds_of_numpys_kind_are_taken():
    from deepspeed.runtime import utils

    with torch.random.fork_rng():
        utils.set_random_seed(np.int64(5))
        drawn = random.random(), torch.rand(1)
        utils.set_random_seed(5)
        assert drawn == (random.random(), torch.rand(1))
    random.seed()


@pytest.mark.parametrize(("text", "said"), [
    ("{", "cannot be read as JSON"), ("[]", "contains a list, not an object"),
    (json.dumps({"optimizer": {"type": "Adam"}}), 'optimizer "Adam" would compile'),
    (json.dumps({"optimizer": {"type": "AdamW", "params": {"lr": 1}}}), "torch_adam"),
], ids=["cut", "list", "Adam", "AdamW"])
def test_a_config_that_cannot_be_used_is_refused(tmp_path, text, said):
    file = tmp_path / "config.json"
    file.write_text(text)
    with pytest.raises(LabError, match=said):
        deepspeed_cpu.read_config(file)
    with pytest.raises(LabError, match="cannot be read"):
        deepspeed_cpu.read_config(tmp_path / "none.json")


@pytest.mark.parametrize("config", [
    {}, {"optimizer": {"type": "SGD", "params": {"lr": 1}}},
    {"optimizer": {"type": "AdamW", "params": {"torch_adam": True}}}],
    ids=["none", "SGD", "torch_adam"])
def test_a_config_that_compiles_nothing_is_taken(tmp_path, config):
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config))
    assert deepspeed_cpu.read_config(file) == config


@pytest.mark.slow
def test_zero_trains_like_ddp_without_importing_the_compiler():
    """Lab 08 shows the same losses beside the student's."""
    def losses(wrap):
        model = replicas.Small("plain", 1)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.02, eps=1e-3)
        x, y = replicas.batch(dist.get_rank(), 4)
        model, step = wrap(model, optimizer)
        found = []
        for _ in range(3):
            optimizer.zero_grad()
            loss = replicas.loss(model, x, y)
            step(loss)
            found.append(loss.item())
        return found

    def ddp(model, optimizer):
        def step(loss):
            loss.backward()
            optimizer.step()

        return torch.nn.parallel.DistributedDataParallel(model), step

    def zero(model, optimizer):
        engine, *_ = deepspeed_cpu.deepspeed.initialize(model=model, optimizer=optimizer, config={
            "train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 3},
            "gradient_clipping": 0.0})

        def step(loss):
            engine.backward(loss)
            engine.step()

        return engine, step

    def both():
        return losses(ddp), losses(zero), "torch._inductor.compile_fx" in sys.modules

    for plain, sharded, compiles in run_ranks(both, 2):
        assert sharded == pytest.approx(plain, rel=1e-6) and not compiles
