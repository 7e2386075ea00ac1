"""Accelerate trains in FP8 where minite stands in for Transformer Engine."""

import sys
import types

import pytest
import torch
from torch import nn

import minite as te
from lablib.transformer_engine import NAME, Finder, stand_in


@pytest.fixture(autouse=True)
def clean():
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == NAME]:
        del sys.modules[name]
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, Finder)]


def test_accelerate_swaps_layers_and_passes_its_recipe_on():
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState
    from accelerate.utils import TERecipeKwargs

    stand_in()
    fp8 = TERecipeKwargs(fp8_format="HYBRID", amax_history_len=16, amax_compute_algo="max",
                         margin=1)
    accelerator = Accelerator(mixed_precision="fp8", cpu=True, kwargs_handlers=[fp8])
    plain = nn.Linear(32, 16)
    norm = nn.LayerNorm(16)
    model = nn.Sequential(plain, norm)
    model, _ = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=1.0))
    AcceleratorState._reset_state(reset_partial_state=True)
    assert isinstance(model[0], te.Linear) and torch.equal(model[0].weight, plain.weight)
    assert isinstance(model[1], te.LayerNorm)
    x = torch.full((8, 32), 4.0)
    (first, second), exact = (model(x) for _ in range(2)), norm(plain(x))
    state = model[0].state_dict()["_extra_state"]
    assert len(state["amax_history_fwd"]) == 16
    assert state["scale_fwd"][0] == 448 / 4 / 2
    assert first.dtype == torch.float32 and second.allclose(exact, atol=0.3)
    assert not second.allclose(exact, atol=1e-4)


def test_an_installed_transformer_engine_stays(monkeypatch):
    real = types.ModuleType(NAME)
    monkeypatch.setitem(sys.modules, NAME, real)
    stand_in()
    assert sys.modules[NAME] is real and f"{NAME}.pytorch" not in sys.modules
