"""torch._scaled_mm on a CPU: exact sums, whatever the processor; PyTorch's interface."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from labkit.check import on_ranks
from minite import cpu_gemm
from minite.quantize import cast

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
ONE = torch.ones(())
OURS = "minite/cpu_gemm.py"
kernels = torch._C._dispatch_dump


def random_bits(dtype: torch.dtype, *shape: int, seed: int = 0) -> torch.Tensor:
    """Return finite FP8 numbers of all magnitudes."""
    generator = torch.Generator().manual_seed(seed)
    bits = torch.randint(256, shape, dtype=torch.uint8, generator=generator)
    x = bits.view(dtype)
    return torch.where(x.float().isfinite(), x.float(), 0).to(dtype)


def integers(x: torch.Tensor, unit: float) -> np.ndarray:
    """Return FP8 numbers as Python integers, in units of their smallest number."""
    return np.array([[int(value) for value in row] for row in (x.double() / unit).tolist()],
                    dtype=object)


@pytest.mark.parametrize("k", [16, 300, 4096])
def test_sums_are_exact_and_rounded_to_float32_once(k):
    a, b = random_bits(E4M3, 8, k), random_bits(E4M3, k, 5, seed=1)
    exact = integers(a, 2**-9) @ integers(b, 2**-9)  # arbitrary precision
    expected = torch.tensor(np.array(exact * 2**-18, dtype=float)).float()
    assert torch.equal(torch._scaled_mm(a, b, ONE, ONE, out_dtype=torch.float32), expected)


@pytest.mark.parametrize("dtypes", [(E4M3, E4M3), (E5M2, E4M3), (E4M3, E5M2)])
def test_the_order_of_the_terms_does_not_change_a_bit(dtypes):
    torch.manual_seed(0)
    a, b = (cast(torch.randn(64, 1024) * 40, dtype) for dtype in dtypes)
    order = torch.randperm(1024)
    same = [torch._scaled_mm(x, y.t(), ONE, ONE, out_dtype=torch.float32)
            for x, y in ((a, b), (a[:, order].contiguous(), b[:, order].contiguous()))]
    assert torch.equal(*same)


def test_results_equal_pytorch_s_own_kernel_up_to_float32_rounding():
    torch.manual_seed(0)
    a, b = cast(torch.randn(32, 64), E4M3), cast(torch.randn(48, 64), E5M2)
    bias, rows, columns = torch.randn(48), torch.rand(32, 1) + 0.5, torch.rand(1, 48) + 0.5
    for scales in ((torch.tensor(0.3), torch.tensor([1.7])), (rows, columns)):
        ours = torch._scaled_mm(a, b.t(), *scales, bias, out_dtype=torch.float32)
        plain = (a.float() * scales[0]) @ (b.float().t() * scales[1]) + bias
        torch.testing.assert_close(ours, plain)


def test_an_fp8_result_is_divided_by_its_scale_and_saturates():
    a = torch.full((16, 16), 448.0).to(E4M3)
    out = torch._scaled_mm(a, a.t(), ONE, ONE, scale_result=torch.tensor(2.0**14))
    assert out.dtype == E4M3 and (out.float() == 192).all()  # 16 x 448^2 / 2^14 = 196
    assert (torch._scaled_mm(a, a.t(), ONE, ONE).float() == 448).all()


def test_both_overloads_use_this_kernel():
    a = torch.ones(16, 16).to(E4M3)
    out = torch.empty(16, 16, dtype=torch.bfloat16)
    assert torch._scaled_mm(a, a.t(), ONE, ONE, out_dtype=torch.bfloat16, out=out) is out
    assert (out == 16).all()
    for overload in ("aten::_scaled_mm", "aten::_scaled_mm.out"):
        assert OURS in kernels(overload), overload


@pytest.mark.slow
def test_ranks_of_a_check_have_it_before_the_student_imports_anything():
    def kernels_of_the_rank() -> str:  # sent with its code, so it imports nothing of ours
        return torch._C._dispatch_dump("aten::_scaled_mm")

    run = on_ranks.run(kernels_of_the_rank, 2, (), {}, 60)
    assert [OURS in value for value in run.values] == [True, True], run.text


@pytest.mark.parametrize(("change", "error", "message"), [
    ({"a": torch.ones(16, 32)}, ValueError, r"not torch\.float32 .* nearest: .*float8_e4m3fn"),
    ({"a": torch.ones(16, 16).to(E4M3)}, RuntimeError, r"\(16, 16\) and \(32, 16\) cannot be"),
    ({"scale_a": torch.ones(16)}, ValueError, r"\(16,\) and \(\);.* \(16, 1\) and \(1, 16\)"),
    ({"scale_a": torch.ones(16, 1)}, ValueError, r"shapes \(16, 1\) and \(\)"),
    ({"scale_b": ONE.double()}, ValueError, "float64; nearest: float32"),
    ({"bias": torch.ones(15)}, RuntimeError, r"bias of shape \(15,\); the result has 16 columns")])
def test_bad_operands_are_refused(change, error, message):
    given = {"a": torch.ones(16, 32).to(E4M3), "b": torch.ones(16, 32).to(E4M3).t(),
             "scale_a": ONE, "scale_b": ONE, "bias": None} | change
    with pytest.raises(error, match=message):
        torch._scaled_mm(*given.values())


def test_float64_multiplication_ignores_autocast():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert cpu_gemm.matmul(torch.tensor([[257.0]]), torch.ones(1, 1)).item() == 257
