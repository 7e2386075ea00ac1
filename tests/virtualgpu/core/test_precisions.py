"""FP8 on virtual GPUs: what runs where, the errors elsewhere, and what it costs."""

import pytest
import torch

from virtualgpu.core.cards import CARDS
from virtualgpu.core.errors import NoValue
from virtualgpu.core.gpu import VirtualGpu
from virtualgpu.core.precisions import RECIPES, recipe_support, require_recipe
from virtualgpu.export.kernel_names import kernels_of

from .counted import meta

E4M3, E5M2, MX = torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu
FP8 = {"l4", "h100-80gb", "h100-pcie-80gb", "h200", "b200"}
# By recipe: the scales of A [256, 512] and B [512, 384].
SCALES = {
    "tensorwise": (meta(()), meta(())),
    "rows": (meta(256, 1), meta(1, 384)),
    "blockwise": (meta(256, 4), meta(4, 3)),
    "mxfp8": (meta(256 * 16, dtype=MX), meta(384 * 16, dtype=MX)),
    "nvfp4": (meta(256 * 32, dtype=E4M3), meta(384 * 32, dtype=E4M3)),
}


def multiply(name, recipe, dtype=E4M3):
    """Run one _scaled_mm of a recipe on a virtual GPU; return the plan and its kernel."""
    shapes, kind = ((256, 512), (384, 512)), dtype
    if recipe == "nvfp4":
        shapes, kind = ((256, 256), (384, 256)), torch.float4_e2m1fn_x2
    a, b = (torch.empty(shape, dtype=kind, device="meta") for shape in shapes)
    with VirtualGpu(CARDS[name]) as gpu:
        out = torch._scaled_mm(a, b.t(), *SCALES[recipe], out_dtype=torch.bfloat16)
    assert (out.shape, out.dtype) == ((256, 384), torch.bfloat16)
    (key, plan), = gpu._plans.items()
    return plan, kernels_of(gpu.card, key, plan)[0]


@pytest.mark.parametrize("recipe", RECIPES)
def test_recipes_are_those_of_transformer_engine_s_matrix(recipe):
    able = {name for name, card in CARDS.items() if not recipe_support(card)[recipe]}
    hopper = FP8 - {"l4"}
    assert able == {"delayed": FP8, "tensorwise": FP8, "blockwise": hopper,
                    "mxfp8": {"b200"}, "nvfp4": {"b200"}}[recipe]


def test_a_refusal_names_what_is_missing_and_the_nearest_gpu_model():
    with pytest.raises(NoValue, match=r"a100-80gb cannot run the delayed recipe: FP8 Tensor Cores "
                       r"came with Ada \(compute capability 8.9\), and it has "
                       r"compute capability 8.0; .* that can is h100-80gb"):
        require_recipe(CARDS["a100-80gb"], "delayed")
    assert recipe_support(CARDS["t4"])["tensorwise"].endswith("l4")
    assert recipe_support(CARDS["h200"])["mxfp8"].endswith("b200")
    with pytest.raises(KeyError):
        require_recipe(CARDS["h200"], "mxfp9")


@pytest.mark.parametrize("name", sorted(set(CARDS) - FP8))
def test_scaled_mm_without_fp8_tensor_cores_raises_pytorch_s_error(name):
    with pytest.raises(RuntimeError, match=r"^torch._scaled_mm is only supported on CUDA devices "
                       r"with compute capability >= 9.0 or 8.9, or ROCm MI300"):
        multiply(name, "tensorwise")


@pytest.mark.parametrize(("name", "recipe", "error", "said"), [
    ("l4", "blockwise", NotImplementedError, "only supported in CUDA for SM90"),
    ("b200", "blockwise", NotImplementedError, "only supported in CUDA for SM90"),
    ("l4", "mxfp8", RuntimeError, "CUBLAS_STATUS_NOT_SUPPORTED.*is b200"),
    ("h100-80gb", "mxfp8", RuntimeError, "CUBLAS_STATUS_NOT_SUPPORTED.*is b200"),
    ("h100-80gb", "nvfp4", RuntimeError, "CUBLAS_STATUS_NOT_SUPPORTED.*is b200")])
def test_block_scales_where_pytorch_has_no_kernel(name, recipe, error, said):
    with pytest.raises(error, match=said):
        multiply(name, recipe)


@pytest.mark.parametrize(("name", "recipe", "kernel"), [
    ("l4", "tensorwise", "sm89_xmma_gemm_e4m3e4m3_"), ("l4", "rows", "sm89_xmma_gemm_e4m3e4m3_"),
    ("h100-80gb", "blockwise", "sm90_xmma_gemm_e4m3e4m3_"),
    ("b200", "mxfp8", "nvjet_sm100_qqtst_"), ("b200", "nvfp4", "nvjet_sm100_ootst_")])
def test_a_scaled_matrix_multiplication_runs_in_its_dtype(name, recipe, kernel):
    plan, result = multiply(name, recipe)
    product = plan.work.gemm
    assert product.dtype == ("fp4" if recipe == "nvfp4" else "fp8")
    assert product.flops == 2 * 256 * 384 * 512
    elements = 256 * 512 + 512 * 384
    scales = sum(one.numel() * one.element_size() for one in SCALES[recipe])
    assert plan.work.bytes == elements // (1 + (recipe == "nvfp4")) + scales + 2 * 256 * 384
    assert result.name.startswith(kernel)


def test_gradients_in_e5m2_have_a_kernel_of_their_own():
    gradient, weight = meta(32, 64, dtype=E5M2), meta(48, 64, dtype=E4M3).t()
    with VirtualGpu(CARDS["h200"]) as gpu:
        torch._scaled_mm(gradient, weight, *SCALES["tensorwise"], out_dtype=torch.bfloat16)
    (key, plan), = gpu._plans.items()
    assert "gemm_e4m3e5m2_" in kernels_of(gpu.card, key, plan)[0].name


def test_a_plain_product_of_fp8_matrices_is_refused():
    with VirtualGpu(CARDS["h100-80gb"]), pytest.raises(
            NotImplementedError, match="\"addmm_cuda\" not implemented for 'Float8_e4m3fn'"):
        meta(32, 64, dtype=E4M3) @ meta(48, 64, dtype=E4M3).t()


def test_casts_amax_and_transposes_are_memory_bound():
    card, count = CARDS["h100-80gb"], 8192 * 8192
    rate = card.bandwidth * card.efficiency.vector
    x = meta(8192, 8192, dtype=torch.bfloat16)
    with VirtualGpu(card) as gpu:
        x.to(E4M3).t().contiguous()
        x.amax()
    seconds = {plan.name: plan.seconds for plan in gpu._plans.values() if plan.kernels}
    moved = {"aten._to_copy": 3 * count, "aten.clone": 2 * count, "aten.amax": 2 * count}
    for name, size in moved.items():
        assert seconds[name] == pytest.approx(size / rate + card.efficiency.kernel, rel=1e-3)


@pytest.mark.parametrize(("order", "pays"), [(1024, False), (8192, True)])
def test_fp8_pays_only_for_large_matrices(order, pays):
    x, w = (meta(order, order, dtype=torch.bfloat16) for _ in "xw")
    with VirtualGpu(CARDS["h100-80gb"]) as gpu:
        x @ w.t()
        plain = gpu.computing
        for one in (x, w):
            one.abs().amax()
        torch._scaled_mm(x.to(E4M3), w.to(E4M3).t(), *SCALES["tensorwise"],
                         out_dtype=torch.bfloat16)
    assert (gpu.computing - plain < plain) is pays
