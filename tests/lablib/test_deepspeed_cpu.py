"""deepspeed_cpu: nothing is compiled, seeds of numpy's kind are taken, configs are checked."""

import json
import random
import sys

import numpy as np
import pytest
import torch

from labcore.errors import LabError
from lablib import deepspeed_cpu


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
