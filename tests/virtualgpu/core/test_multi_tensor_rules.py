"""Bytes and launches of kernels over lists of tensors, counted by hand from their shapes."""

import pytest
import torch

from virtualgpu.core.rules.optimizer import COSTS

from .counted import aten, counted, meta

FIRST, SECOND = 6 * 10 * 4, 7 * 4  # bytes of the two tensors of a list
LIST = FIRST + SECOND


def tensors():
    return [meta(6, 10), meta(7)]


def steps():
    return [meta(()), meta(())]  # 4 bytes each


SETTINGS = {"weight_decay": 0.1, "maximize": False, "lr": 0.1}
ADAM = SETTINGS | {"beta1": 0.9, "beta2": 0.9, "eps": 1e-8}
SGD = SETTINGS | {"momentum": 0.9, "dampening": 0.0, "nesterov": False, "is_first_step": False}
# Programs and the bytes that are read and written.
OPTIMIZERS = {
    # Parameters, gradients, and both moments are read; all but the gradients are written.
    **{f"aten._fused_{name}_": (
        lambda step=step: step(
            tensors(), tensors(), tensors(), tensors(), [], steps(), amsgrad=False, **ADAM),
        4 * LIST + 8 + 3 * LIST)
       for name, step in (("adam", aten._fused_adam_), ("adamw", aten._fused_adamw_))},
    # Parameters, gradients, and momentum are read; parameters and momentum are written.
    "aten._fused_sgd_": (
        lambda: aten._fused_sgd_(tensors(), tensors(), tensors(), **SGD), 3 * LIST + 2 * LIST),
    "aten._fused_adagrad_": (
        lambda: aten._fused_adagrad_(tensors(), tensors(), tensors(), steps(), lr_decay=0.0,
                                     eps=1e-8, **SETTINGS), 3 * LIST + 8 + 2 * LIST),
    # Gradients are unscaled in place, by a scale of 4 bytes that stays on the chip.
    "aten._amp_foreach_non_finite_check_and_unscale_": (
        lambda: aten._amp_foreach_non_finite_check_and_unscale_(tensors(), meta(1), meta(1)),
        2 * LIST),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_fused_optimizer_s_bytes(name):
    program, size = OPTIMIZERS[name]
    assert counted(program, name) == (size, 1)


def test_amsgrad_s_largest_moments_are_read_and_written():
    def program():
        aten._fused_adam_(*(tensors() for _ in range(5)), steps(), amsgrad=True, **ADAM)
    assert counted(program, "aten._fused_adam_") == (5 * LIST + 8 + 4 * LIST, 1)


def test_sgd_without_momentum():
    def program():
        aten._fused_sgd_(tensors(), tensors(), [], **SGD)
    assert counted(program, "aten._fused_sgd_") == (2 * LIST + LIST, 1)


UNARY = ("neg", "sqrt", "reciprocal", "abs", "exp", "sign", "rsqrt")
BINARY = ("add", "sub", "mul", "div", "maximum", "minimum", "clamp_max", "clamp_min")
TERNARY = ("addcmul", "addcdiv")


def given(name):
    """Return the lists that an operation takes, and numbers that follow them."""
    if name in UNARY:
        return [tensors()]
    if name == "pow":
        return [tensors(), 2]
    if name == "lerp":
        return [tensors(), tensors(), 0.5]
    return [tensors() for _ in range(2 if name in BINARY else 3)]


FOREACH = sorted(name.removeprefix("aten._foreach_") for name in COSTS
                 if name.startswith("aten._foreach_"))


@pytest.mark.parametrize("name", sorted({*FOREACH} - {"norm", "zero_", "copy_"}))
def test_every_list_is_read_and_one_written(name):
    plain = name.rstrip("_")
    lists = (1 if plain in (*UNARY, "pow") else 2 if plain in (*BINARY, "lerp") else 3)
    assert plain in (*UNARY, *BINARY, *TERNARY, "pow", "lerp")
    full = f"_foreach_{name}"
    assert counted(lambda: getattr(aten, full)(*given(plain)), f"aten.{full}") == (
        (lists + 1) * LIST, 1)


def test_what_is_overwritten_is_not_read():
    assert counted(lambda: torch._foreach_zero_(tensors()), "aten._foreach_zero_") == (LIST, 1)
    assert counted(lambda: torch._foreach_copy_(tensors(), tensors()), "aten._foreach_copy_") == (
        2 * LIST, 1)


@pytest.mark.parametrize(("count", "kernels"), [(1, 3), (110, 3), (111, 4), (400, 6), (401, 7)])
def test_norms_are_reduced_twice(count, kernels):
    """Each tensor is read, and its norm written. A fill; a launch per 110 tensors; another per 400
    to reduce what their chunks left."""
    def program():
        torch._foreach_norm([meta(7) for _ in range(count)])
    assert counted(program, "aten._foreach_norm") == (count * (28 + 4), kernels)


@pytest.mark.parametrize(("program", "name", "most"), [
    (lambda given: torch._foreach_zero_(given), "aten._foreach_zero_", 110),
    (lambda given: torch._foreach_add_(given, given), "aten._foreach_add_", 64),
    (lambda given: torch._foreach_add(given, given), "aten._foreach_add", 48),  # and the result's
    (lambda given: torch._foreach_addcmul(given, given, given), "aten._foreach_addcmul", 36),
    (lambda given: aten._fused_adam_(given, given, given, given, [], given, amsgrad=False, **ADAM),
     "aten._fused_adam_", 36),  # of four lists: step counts do not limit a launch
    (lambda given: aten._fused_adam_(given, given, given, given, given, given, amsgrad=True,
                                     **ADAM), "aten._fused_adam_", 30),
])
def test_a_launch_takes_as_many_tensors_as_fit(program, name, most):
    for count, launches in ((most, 1), (most + 1, 2), (2 * most, 2)):
        assert counted(lambda count=count: program([meta(()) for _ in range(count)]),
                       name)[1] == launches


def test_a_launch_takes_320_chunks_of_65536_elements():
    for elements, launches in ((320 * 65536, 1), (320 * 65536 + 1, 2)):
        assert counted(lambda elements=elements: torch._foreach_zero_([meta(elements)]),
                       "aten._foreach_zero_") == (4 * elements, launches)
    halves = [160 * 65536 + 1, 160 * 65536 + 1]  # 161 chunks each
    assert counted(lambda: torch._foreach_zero_([meta(size) for size in halves]),
                   "aten._foreach_zero_") == (4 * sum(halves), 2)
