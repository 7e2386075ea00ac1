"""What stopped public programs: modules that are moved late, sharded tensors, and packages run as
modules."""

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F

from virtualgpu.launch import command
from virtualgpu.launch.cluster import parse
from virtualgpu.launch.ranks import run_ranks
from virtualgpu.launch.settings import Settings


def ran(program, gpus="h100"):
    ranks = run_ranks(parse(gpus), Settings(), program)
    assert [rank.error for rank in ranks] == [None] * len(ranks), ranks[0].error
    return ranks[0].value


def moved_after_training():
    """DistributedDataParallel and its graph refer to the parameters, so they cannot be swapped."""
    dist.init_process_group("nccl")
    torch.cuda.set_device(0)
    layer = torch.nn.Linear(3, 2).cuda()
    model = torch.nn.parallel.DistributedDataParallel(layer)
    loss = model(torch.ones(4, 3, device="cuda")).sum()
    loss.backward()
    values = layer.weight.tolist()
    on_host = layer.cpu()
    return on_host.weight.device.type, on_host.weight.tolist() == values


def test_a_module_that_others_refer_to_moves_to_the_host():
    assert ran(moved_after_training) == ("cpu", True)


@pytest.mark.filterwarnings("ignore")
def sharded_state(folder):
    import torch.distributed.checkpoint as checkpoint
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
    from torch.distributed.fsdp import StateDictType

    dist.init_process_group("nccl")
    torch.cuda.set_device(dist.get_rank())
    model = FSDP(torch.nn.Linear(16, 8), device_id=dist.get_rank())
    FSDP.set_state_dict_type(model, StateDictType.SHARDED_STATE_DICT)
    state = model.state_dict()
    checkpoint.save(state, checkpoint_id=folder)
    return type(state["weight"]).__name__, state["weight"].device.type


@pytest.mark.filterwarnings("ignore")
def test_sharded_tensors_have_a_device_and_are_saved(tmp_path):
    assert ran(lambda: sharded_state(tmp_path), "h100:2") == ("ShardedTensor", "cuda")
    assert (tmp_path / ".metadata").exists()


def test_a_module_s_package_is_imported_by_the_program_only(tmp_path, monkeypatch):
    """It may read sys.argv, which is virtualrun's own until the program starts."""
    package = tmp_path / "reads_arguments"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit('imported too early')\n")
    (package / "train.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    assert command._is_module("reads_arguments.train")
    assert not command._is_module("reads_arguments.evaluate")
    assert not command._is_module("no_such_package.train")


def half_precision(device):
    torch.manual_seed(1)
    x, weight, bias = (torch.randn(shape).bfloat16().to(device).requires_grad_()
                       for shape in ((4, 8), (8,), (8,)))
    out = F.layer_norm(x, (8,), weight, bias)
    return torch.autograd.grad(out.float().square().sum(), (x, weight, bias))


def test_layer_norm_in_16_bits_has_known_gradients():
    found = ran(lambda: [one.cpu() for one in half_precision("cuda")])
    for one, expected in zip(found, half_precision("cpu"), strict=True):
        torch.testing.assert_close(one, expected, rtol=2e-2, atol=2e-2)


def chosen_rows():
    """The mask is known, and what it chooses from is not."""
    x = torch.randn(4, 600_000, device="cuda", requires_grad=True)
    mask = torch.tensor([True, False, True, True], device="cuda")
    rows = x[mask]
    rows.sum().backward()
    wide = torch.zeros_like(x, dtype=torch.bool)
    with pytest.raises(ValueError, match="needs a tensor's values"):
        x[wide > x]
    small = torch.randn(600_000, device="cuda")[:4]
    return rows.shape, x.grad.shape, x[:, :2][:, mask[:2]].shape, small.masked_select(mask).shape


def test_a_known_mask_chooses_from_unknown_values():
    assert ran(chosen_rows) == ((3, 600_000), (4, 600_000), (4, 1), (3,))
