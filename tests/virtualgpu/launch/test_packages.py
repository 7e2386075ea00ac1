"""Stand-ins for packages that need CUDA: values, shapes, and refusals by name."""

import importlib
import sys
from importlib import metadata
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from virtualgpu.core.errors import NoValue, VirtualGpuError
from virtualgpu.launch.cluster import parse
from virtualgpu.launch.ranks import run_ranks
from virtualgpu.launch.settings import Settings
from virtualgpu.packages.finder import PACKAGES

HALF = {"dtype": torch.bfloat16, "device": "cuda"}
CLOSE = {"rtol": 2e-2, "atol": 2e-2}


def ran(program, gpus="h100", **settings):
    (rank,) = run_ranks(parse(gpus), Settings(**settings), program)
    assert rank.error is None, rank.error
    return rank


def refused(program, **settings):
    (rank,) = run_ranks(parse("h100"), Settings(**settings), program)
    assert rank.error and "\n" not in rank.message, rank.message
    return rank.message


def given(*shapes, **options):
    torch.manual_seed(1)
    return [torch.randn(shape, **(options or HALF), requires_grad=True) for shape in shapes]


def reference(query, key, value, **options):
    """Attention of [batch, tokens, heads, width] in plain PyTorch."""
    swapped = [one.transpose(1, 2) for one in (query, key, value)]
    return F.scaled_dot_product_attention(*swapped, **options, enable_gqa=True).transpose(1, 2)


def compare(operands, *functions, **close):
    """Compare the functions' results and their gradients."""
    found = []
    for function in functions:
        out = function()
        grads = torch.autograd.grad(out.float().square().sum(), operands)
        found.append([out.detach().cpu(), *(one.cpu() for one in grads)])
    for first, second in zip(*found, strict=True):
        torch.testing.assert_close(first / first.abs().max(), second / first.abs().max(), **close)


def flash_attention():
    from flash_attn import flash_attn_func, flash_attn_varlen_func, flash_attn_with_kvcache

    operands = query, key, value = given((2, 12, 4, 32), (2, 12, 2, 32), (2, 12, 2, 32))
    for causal in (False, True):
        compare(operands, lambda c=causal: flash_attn_func(query, key, value, causal=c),
                lambda c=causal: reference(query, key, value, is_causal=c), **CLOSE)
    window = torch.ones(12, 12, dtype=torch.bool, device="cuda").tril().triu(-3)
    compare(operands, lambda: flash_attn_func(query, key, value, causal=True, window_size=(3, 0)),
            lambda: reference(query, *(one.repeat_interleave(2, 2) for one in (key, value)),
                              attn_mask=window), **CLOSE)
    starts = torch.tensor([0, 12, 24], device="cuda", dtype=torch.int32)
    packed = [one.flatten(0, 1) for one in operands]
    compare(operands,
            lambda: flash_attn_varlen_func(*(one.flatten(0, 1) for one in operands), starts,
                                           starts, 12, 12, causal=True).unflatten(0, (2, 12)),
            lambda: reference(query, key, value, is_causal=True), **CLOSE)
    with torch.no_grad():
        caches = [torch.zeros(2, 20, 2, 32, **HALF) for _ in range(2)]
        parts = [flash_attn_with_kvcache(query[:, at:at + 6], *caches, key[:, at:at + 6],
                                         value[:, at:at + 6], cache_seqlens=at, causal=True)
                 for at in (0, 6)]
        expected = reference(query, key, value, is_causal=True)
        torch.testing.assert_close(torch.cat(parts, 1).cpu(), expected.cpu(), **CLOSE)
    unknown = torch.randint(5, (2 ** 20,), device="cuda").cumsum(0)[:3]
    return flash_attn_varlen_func(*packed, unknown, unknown, 12, 12).shape, metadata.version(
        "flash_attn")


def test_flash_attention_has_the_values_of_plain_attention():
    rank = ran(flash_attention, "a100")
    assert rank.value == ((24, 4, 32), PACKAGES["flash_attn"][1])
    assert any("2 sequences of this call are equally long" in one.text
               for one in rank.assumptions)


def flash_layers():
    from flash_attn.bert_padding import pad_input, unpad_input
    from flash_attn.layers.rotary import RotaryEmbedding, apply_rotary_emb
    from flash_attn.ops.triton.layer_norm import layer_norm_fn

    qkv, = given((2, 6, 3, 2, 16), device="cuda")
    rotary = RotaryEmbedding(16, device="cuda")
    out = rotary(qkv * 1)
    halves = torch.polar(torch.ones((), device="cuda"),
                         torch.outer(torch.arange(6, device="cuda"), rotary.inv_freq))
    turned = torch.view_as_real(
        torch.complex(*qkv[:, :, :2].unflatten(-1, (2, 8)).unbind(-2)) * halves[:, None, None])
    expected = torch.cat([turned.transpose(-1, -2).flatten(-2), qkv[:, :, 2:]], 2)
    torch.testing.assert_close(out.cpu(), expected.cpu())
    out.square().sum().backward()
    torch.testing.assert_close(qkv.grad.cpu(), 2 * qkv.detach().cpu())
    x = qkv[:, :, 0].detach()
    pairs = apply_rotary_emb(x, halves.real, halves.imag, interleaved=True)
    torch.testing.assert_close(torch.view_as_complex(pairs.unflatten(-1, (8, 2))).cpu(),
                               (torch.view_as_complex(x.unflatten(-1, (8, 2)))
                                * halves[:, None]).cpu())
    weight = torch.rand(16, device="cuda")
    y, total = layer_norm_fn(x, weight, None, residual=x, prenorm=True, is_rms_norm=True)
    torch.testing.assert_close(y.cpu(), F.rms_norm(2 * x, (16,), weight, 1e-6).cpu())
    mask = torch.tensor([[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1]], device="cuda")
    tokens, indices, starts, longest, _ = unpad_input(total, mask)
    padded = pad_input(tokens, indices, 2, 6)
    assert torch.equal(padded.cpu(), (total * mask[..., None, None]).cpu())
    return tokens.shape[0], starts.tolist(), longest


def test_flash_attentions_layers_compute_their_values():
    assert ran(flash_layers).value == (10, [0, 4, 10], 6)


def memory_efficient():
    from xformers.ops import LowerTriangularMask, fmha, memory_efficient_attention

    for options in (HALF, {"device": "cuda"}):
        operands = given(*[(2, 8, 2, 16)] * 3, **options)
        compare(operands, lambda o=operands: memory_efficient_attention(
            *o, attn_bias=LowerTriangularMask()),
            lambda o=operands: reference(*o, is_causal=True), **CLOSE)
    mask = fmha.attn_bias.BlockDiagonalCausalMask.from_seqlens([5, 3])
    out = memory_efficient_attention(*(one[:1] for one in operands), attn_bias=mask)
    parts = [reference(*(one[:1, part] for one in operands), is_causal=True)
             for part in (slice(5), slice(5, 8))]
    torch.testing.assert_close(out.cpu(), torch.cat(parts, 1).cpu())


def test_xformers_has_the_values_of_plain_attention():
    ran(memory_efficient)


def transformer_layer(fp8):
    import transformer_engine.pytorch as te

    layer = te.TransformerLayer(64, 128, 4, hidden_dropout=0, attention_dropout=0,
                                normalization="RMSNorm", activation="swiglu")
    x, = given((16, 2, 64), device="cuda")
    if fp8:
        with torch.autocast("cuda", torch.bfloat16), te.fp8_autocast():
            out = layer(x)
    else:
        out = layer(x)
    out.float().square().mean().backward()
    norm = torch.cat([one.grad.float().flatten() for one in layer.parameters()]).norm().item()
    attention, mlp = layer.self_attention, layer.layernorm_mlp
    first = attention.layernorm_qkv
    mixed = F.linear(F.rms_norm(x, (64,), first.layer_norm_weight, first.eps), first.weight,
                     first.bias).unflatten(-1, (4, 3, 16))
    heads = [one.transpose(0, 1) for one in mixed.unbind(-2)]
    y = x + attention.proj(reference(*heads, is_causal=True).transpose(0, 1).flatten(-2))
    gate, up = F.linear(F.rms_norm(y, (64,), mlp.layer_norm_weight, mlp.eps), mlp.fc1_weight,
                        mlp.fc1_bias).chunk(2, -1)
    expected = y + F.linear(F.silu(gate) * up, mlp.fc2_weight, mlp.fc2_bias)
    layer.zero_grad()
    expected.square().mean().backward()
    plain = torch.cat([one.grad.flatten() for one in layer.parameters()]).norm().item()
    torch.testing.assert_close(out.float().cpu(), expected.cpu(), rtol=0.05 if fp8 else 1e-5,
                               atol=0.05 if fp8 else 1e-5)
    return norm, plain


@pytest.mark.parametrize(("fp8", "close"), [(False, 1e-5), (True, 0.02)])
def test_a_transformer_layer_has_the_values_of_plain_pytorch(fp8, close):
    rank = ran(lambda: transformer_layer(fp8))
    norm, plain = rank.value
    assert norm == pytest.approx(plain, rel=close)
    assert ("aten._scaled_mm" in rank.busy) == fp8


def test_fp8_is_refused_on_a_gpu_without_it():
    def program():
        import transformer_engine.pytorch as te

        with pytest.raises(AssertionError, match=r"fp8|FP8"), te.fp8_autocast():
            pass
        return te.is_fp8_available()[0]

    assert ran(program, "a100").value is False


MEGATRON = """
import amp_C
import fused_weight_gradient_mlp_cuda
import scaled_masked_softmax_cuda
import scaled_upper_triang_masked_softmax_cuda
from apex.contrib.layer_norm.layer_norm import FastLayerNormFN
from apex.multi_tensor_apply import multi_tensor_applier
from apex.normalization import FusedLayerNormAffineFunction
from apex.optimizers import FusedAdam
"""


def apex():
    """Megatron-LM imports Apex here; nobody else finds it."""
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("apex")
    m = SimpleNamespace(__name__="megatron.core.fusions")
    exec(MEGATRON, vars(m))
    softmax = m.scaled_upper_triang_masked_softmax_cuda
    scores, = given((4, 16, 16))
    weights = softmax.forward(scores.detach(), torch.tensor([1.0])[0])
    hidden = torch.ones(16, 16, dtype=torch.bool, device="cuda").triu(1)
    expected = scores.masked_fill(hidden, -torch.inf).softmax(-1)
    expected.square().sum().backward()
    torch.testing.assert_close(weights.cpu(), expected.detach().cpu(), **CLOSE)
    torch.testing.assert_close(softmax.backward(2 * weights, weights, 1.0).cpu(),
                               scores.grad.cpu(), **CLOSE)
    with pytest.raises(NoValue, match=r"scaled_upper_triang_masked_softmax\(scale=..\)"):
        softmax.forward(weights, torch.tensor([0.5])[0])
    limit = m.scaled_masked_softmax_cuda.get_batch_per_block
    operands = given((2, 3, 8), (8,), (8,), device="cuda")
    for function, shape in ((m.FastLayerNormFN, ()), (m.FusedLayerNormAffineFunction, ((8,),))):
        compare(operands, lambda f=function, s=shape: f.apply(*operands, *s, 1e-5),
                lambda: F.layer_norm(operands[0], (8,), *operands[1:], 1e-5))
    with pytest.raises(NoValue, match=r"fused_layer_norm_affine\(memory_efficient=..\)"):
        m.FusedLayerNormAffineFunction.apply(*operands, (8,), 1e-5, True)
    rows, slopes = given((2, 3, 8), (2, 3, 4))
    total = torch.ones(4, 8, device="cuda")
    m.fused_weight_gradient_mlp_cuda.wgrad_gemm_accum_fp32(rows, slopes, total)
    product = 1 + slopes.flatten(0, 1).t().float() @ rows.flatten(0, 1).float()
    torch.testing.assert_close(total.cpu(), product.detach().cpu())
    flag = torch.zeros(1, dtype=torch.int, device="cuda")
    norm, _ = m.multi_tensor_applier(m.amp_C.multi_tensor_l2norm, flag, [[total, total]], False)
    torch.testing.assert_close(norm.cpu(), total.norm().cpu().reshape(1) * 2 ** 0.5)
    half = [torch.empty_like(total, dtype=torch.bfloat16)]
    m.multi_tensor_applier(m.amp_C.multi_tensor_scale, flag, [[total], half], 0.5)
    torch.testing.assert_close(half[0].cpu(), (total / 2).bfloat16().cpu())
    found = []
    for kind in (m.FusedAdam, torch.optim.AdamW):
        weight = torch.nn.Parameter(total.clone())
        weight.grad = torch.ones_like(weight)
        kind([weight], lr=0.1, weight_decay=0.1).step()
        found.append(weight.detach().cpu())
    torch.testing.assert_close(*found)
    return limit(2048, 2048, 4, 8), limit(128, 128, 4, 8), limit(16, 16, 4, 8)


def test_megatron_finds_the_kernels_of_apex():
    rank = ran(apex)
    assert rank.value == (4, 8, 16)
    assert "virtualgpu.add_product" in rank.busy
    assert any("apex is virtualrun's own model" in one.text for one in rank.assumptions)


def unmodeled_argument():
    from flash_attn import flash_attn_func

    flash_attn_func(*given(*[(1, 4, 2, 16)] * 3), alibi_slopes=torch.ones(2, device="cuda"))


def unmodeled_part():
    importlib.import_module("transformer_engine.pytorch").GroupedLinear(1, 2, 3)


def unmodeled_module():
    importlib.import_module("flash_attn.modules.mha")


@pytest.mark.parametrize(("program", "name"), [
    (unmodeled_argument, "flash_attn_func(alibi_slopes=..) is not modeled"),
    (unmodeled_part, "transformer_engine.pytorch.GroupedLinear is not modeled"),
    (unmodeled_module, "flash_attn.modules is not part of virtualrun's model of flash_attn")])
def test_what_a_stand_in_lacks_is_refused_by_name(program, name):
    assert name in refused(program)


def test_triton_kernels_are_refused_by_name(tmp_path):
    """Triton installs without a GPU, but its kernels need CUDA's driver."""
    runtime = tmp_path / "triton" / "runtime"
    runtime.mkdir(parents=True)
    for folder in (runtime.parent, runtime):
        (folder / "__init__.py").touch()
    (runtime / "jit.py").write_text("class JITFunction:\n    __name__ = 'add_kernel'\n\n"
                                    "    def run(self, *args, grid):\n        raise OSError\n")

    def program():
        sys.path.insert(0, str(tmp_path))
        importlib.import_module("triton.runtime.jit").JITFunction().run(1, grid=(2,))

    message = refused(program)
    assert "test_packages.py, line" in message
    assert "add_kernel is a Triton kernel, and Triton kernels are not modeled" in message


def test_programs_run_without_a_stand_in_that_is_unwanted():
    def program():
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module("flash_attn")

    ran(program, without=("flash_attn",))
    assert "flash_attn" not in sys.modules
    with pytest.raises(VirtualGpuError, match="--without triton: nothing with this name can"):
        Settings(without=("triton",))


def flexible():
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention
    from torch.nn.attention.varlen import varlen_attn

    operands = given(*[(1, 2, 256, 64)] * 3)
    mask = create_block_mask(lambda b, h, q, k: q >= k, None, None, 256, 256, device="cuda")
    out = torch.compile(flex_attention)(*operands, block_mask=mask)
    out.sum().backward()
    starts = torch.tensor([0, 100, 256], device="cuda", dtype=torch.int32)
    packed = [one[0].transpose(0, 1) for one in operands]
    rows = varlen_attn(*packed, starts, starts, 156, 156, window_size=(-1, 0))
    parts = [reference(*(one[None, part] for one in packed), is_causal=True)[0]
             for part in (slice(100), slice(100, 256))]
    torch.testing.assert_close(rows.cpu(), torch.cat(parts).cpu(), **CLOSE)
    rows.sum().backward()
    torch._assert_async(torch.ones((), device="cuda"))
    with pytest.raises(torch.AcceleratorError, match="device-side assert triggered: all positive"):
        torch._assert_async(torch.zeros((), device="cuda"), "all positive")
    return out.shape, operands[0].grad.shape


def test_attention_with_any_mask_is_modeled():
    rank = ran(flexible)
    assert rank.value == ((1, 2, 256, 64),) * 2
    assert {"virtualgpu.block_attention", "virtualgpu.block_attention_backward",
            "virtualgpu.packed_attention_backward"} <= set(rank.busy)
