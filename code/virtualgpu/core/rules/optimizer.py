"""Optimizers, and the operations over lists of tensors that they consist of (torch._foreach)."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

from virtualgpu.core.operand import Operand, moved, tensors
from virtualgpu.core.rules.pointwise import elementwise, is_elementwise
from virtualgpu.core.rules.returns import (
    Arguments,
    Result,
    ResultRule,
    expands,
    matching,
    real,
    returns,
)
from virtualgpu.core.rules.work import CostRule, KernelWork, read_and_write

# ATen/native/cuda/MultiTensorApply.cuh, built for CUDA 12: a launch takes up to MAX_CHUNKS chunks
# of CHUNK_ELEMENTS elements, and as many tensors as fit into a kernel's arguments, by the number of
# lists.
CHUNK_ELEMENTS, MAX_CHUNKS = 65536, 320
MAX_TENSORS = (110, 64, 48, 36, 30)
NORM_TENSORS = 400  # tensors per launch of the kernel that ends _foreach_norm (foreach_reduce.cuh)


# ---- costs


def multi_tensor(written: Sequence[int] = (0,), *, read: bool = True, steps: bool = False
                 ) -> CostRule:
    """Cost of a kernel over lists of tensors, whose launches are those of MultiTensorApply.cuh.

    A launch that ends in the middle of a tensor can lead to one more launch, which is not counted.

    Args:
        written: positions of the lists that it writes in place.
        read: whether the first list is read before it is written.
        steps: whether the last list holds step counts, which are not among the lists that limit a
            launch (FusedOptimizerTensorListMetadata in the same file).
    """
    def rule(arguments: Sequence, results: Sequence[Operand]) -> KernelWork:
        lists = [item for item in arguments if isinstance(item, (list, tuple)) and tensors([item])]
        size = sum(moved(item) for some in lists[0 if read else 1:] for item in tensors([some]))
        size += sum(map(moved, results)) if results else sum(
            moved(item) for position in written for item in tensors([arguments[position]]))
        return KernelWork(size, kernels=_launches(lists[0], len(lists) - steps + bool(results)))
    return rule


def foreach_norm(arguments: Sequence, results: Sequence[Operand]) -> KernelWork:
    """_foreach_norm(tensors, ..): a kernel zeroes a number per chunk, one reduces the chunks, and
    one reduces their results (ATen/native/cuda/ForeachReduceOp.cu)."""
    given = arguments[0]
    kernels = 1 + _launches(given, 1) + -(-len(given) // NORM_TENSORS)
    return read_and_write(arguments, results)._replace(kernels=kernels)


def _launches(given: Sequence[Operand], lists: int) -> int:
    """Return the number of launches of a kernel over lists of tensors.

    Args:
        given: the tensors of one list.
        lists: number of lists that the kernel reads or writes.
    """
    chunks = sum(-(-item.numel() // CHUNK_ELEMENTS) for item in given)
    most = MAX_TENSORS[min(lists, len(MAX_TENSORS)) - 1]
    return max(-(-chunks // MAX_CHUNKS), -(-len(given) // most), 1)


COSTS: dict[str, CostRule] = {
    "aten._foreach_norm": foreach_norm,
    "aten._foreach_copy_": multi_tensor(read=False),
    "aten._foreach_zero_": multi_tensor(read=False),
    "aten._amp_foreach_non_finite_check_and_unscale_": multi_tensor(),
    "aten._amp_update_scale_": read_and_write,
    "aten._fused_adam_": multi_tensor((0, 2, 3, 4), steps=True),
    "aten._fused_adamw_": multi_tensor((0, 2, 3, 4), steps=True),
    "aten._fused_sgd_": multi_tensor((0, 2)),
    "aten._fused_adagrad_": multi_tensor((0, 2), steps=True),
    # Reads all four buffers, and writes all but the gradients.
    "virtualgpu.adamw": lambda a, r: KernelWork(
        sum(map(moved, a)) + sum(moved(a[i]) for i in (0, 2, 3))),
    **{f"aten._foreach_{name}": multi_tensor() for name in (
        "add", "add_", "sub", "sub_", "mul", "mul_", "div", "div_", "neg", "neg_", "sqrt", "sqrt_",
        "reciprocal", "reciprocal_", "maximum", "maximum_", "minimum", "minimum_", "pow", "abs",
        "clamp_max_", "clamp_min_", "exp", "sign", "rsqrt_", "lerp_", "addcmul_", "addcdiv_",
        "addcmul", "addcdiv", "lerp")},
}


# ---- results

FOREACH = "aten._foreach_"


def foreach_rule(name: str) -> ResultRule | None:
    """Return the result rule of an operation over lists that is elementwise for each element, such
    as "aten._foreach_add", or None."""
    if not name.startswith(FOREACH):
        return None
    each = name.removeprefix(FOREACH)
    listed = each in ("norm", "max", "copy", "zero", "clone") or is_elementwise(f"aten.{each}")
    return _foreach if listed else None


def _lists(a: Arguments) -> dict[str, list]:
    """Return the lists among the arguments. Raises ValueError unless they are equally long."""
    lists = {name: value for name, value in vars(a).items() if isinstance(value, list)}
    if len({len(value) for value in lists.values()}) != 1 or [] in lists.values():
        raise ValueError("lists of different lengths: " + ", ".join(
            f"{name} {len(value)}" for name, value in lists.items()))
    return lists


def _foreach(a: Arguments) -> list[Result]:
    """Return the results of a _foreach operation, in place or not."""
    name = a.name.removeprefix("_foreach_")
    lists = _lists(a)
    count = len(next(iter(lists.values())))
    return [one for at in range(count) for one in _foreach_element(
        name, a, {key: value[at] for key, value in lists.items()})]


def _foreach_element(name: str, a: Arguments, element: dict[str, object]) -> list[Result]:
    x = element.get("self")  # a number, in _foreach_pow
    if name in ("norm", "max"):
        return [((), getattr(a, "dtype", None) or real(x.dtype))]
    if name in ("zero", "clone"):
        return [(x.shape, x.dtype)]
    if name == "copy":
        expands(element["src"].shape, x.shape)
        return [(x.shape, x.dtype)]
    one = SimpleNamespace(**vars(a) | element | {"name": name})
    if name in ("addcmul", "addcdiv", "lerp"):  # their numbers do not change the dtype
        for number in ("scalars", "value", "weight"):
            if not isinstance(getattr(one, number, None), Operand):
                vars(one).pop(number, None)
    for number in ("scalar", "scalars"):  # the schema's names for the second operand
        if hasattr(one, number):
            one.other = vars(one).pop(number)
    return elementwise(one)


@returns("_fused_adam", "_fused_adamw", "_fused_sgd", "_fused_adagrad")
def _optimizer(a: Arguments) -> list[Result]:
    """Check the lists of a fused optimizer, all of whose tensors have their parameter's shape."""
    for name, items in vars(a).items():
        if not isinstance(items, list) or not items:
            continue  # such as the momenta of SGD without momentum
        if len(items) != len(a.self):
            raise ValueError(f"{len(a.self)} parameters, but {name} has {len(items)}")
        for parameter, item in zip(a.self, items, strict=True):
            matching(item.numel() == 1 if name == "state_steps" else
                     item.shape == parameter.shape, parameter=parameter, other=item)
    return []


@returns("_amp_foreach_non_finite_check_and_unscale", "_amp_update_scale")
def _scaler(a: Arguments) -> list[Result]:
    for name in ("found_inf", "inv_scale", "growth_tracker"):
        item = getattr(a, name, None)
        if item is not None:
            matching(item.numel() == 1, operand=item)
    return [(a.self.shape, a.self.dtype)] if isinstance(a.self, Operand) else []


@returns("virtualgpu.adamw")
def _adamw(a: Arguments) -> list[Result]:
    for item in (a.gradients, a.exp_avg, a.exp_avg_sq):
        matching(item.numel() == a.weights.numel(), weights=a.weights, other=item)
    return []
