"""Values and small models of lab 09."""

import pytest
import torch

import virtualgpu
from lablib import tensor, tensor_training
from minimegatron.arguments.presets import PRESETS


def test_values_depend_on_shape_and_seed_alone():
    assert torch.equal(tensor.sines((2, 3), 1.5).flatten(), tensor.sines((6,), 1.5))
    assert not torch.equal(tensor.sines((6,), 1.5), tensor.sines((6,), 1.6))
    weight = torch.nn.Parameter(torch.empty(2, 2))
    tensor.fill([weight], [3.0])
    assert torch.equal(weight, 0.5 * tensor.sines((2, 2), 3.0))


def test_a_token_depends_on_the_two_before_it():
    after = {}
    for number in range(3):
        tokens, labels = tensor.tiny_batch(number)
        assert torch.equal(tokens[1:], labels[:-1])
        for first, second, third in zip(tokens[:-1].flatten().tolist(),
                                        tokens[1:].flatten().tolist(),
                                        labels[1:].flatten().tolist(), strict=True):
            assert after.setdefault((first, second), third) == third


@pytest.mark.parametrize("is_gated", [True, False])
def test_a_layer_takes_18_bytes_per_parameter_and_its_activations(is_gated):
    hidden, inner = 2048, 8192
    (rank,) = virtualgpu.run(lambda: tensor.layer_step(hidden, inner, 16, 16, 128, is_gated),
                             "h100:1")
    assert rank.error is None
    parameters = 4 * hidden**2 + (3 if is_gated else 2) * hidden * inner
    assert 18 * parameters < rank.peak < 1.25 * 18 * parameters


def test_the_layer_of_llama_3_8b_is_the_preset_s():
    flags = PRESETS["llama3-8b"].flags.split()
    given = {flag: flags[flags.index(flag) + 1] for flag in flags if flag.startswith("--")
             and flags.index(flag) + 1 < len(flags)}
    shape = tensor_training.LLAMA_8B
    assert [shape[name] for name in ("hidden_size", "heads", "kv_heads", "inner_size",
                                     "rotary_base")] == [int(given[flag]) for flag in (
        "--hidden-size", "--num-attention-heads", "--num-query-groups", "--ffn-hidden-size",
        "--rotary-base")]
    assert shape["heads"] * shape["head_dim"] == shape["hidden_size"]
