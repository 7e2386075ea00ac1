"""Tokens that inference produces: numbers that were not computed, but that loops compare and print.

A decoding loop ends when a token is the end-of-text token. Since no token is computed, that is
assumed: it never is, so the loop runs to its own maximum, or it is the N-th one
(--output-tokens N).
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Sequence
from types import FrameType

import torch

from virtualgpu.core.gpu import VirtualGpu
from virtualgpu.core.operand import tensors
from virtualgpu.pytorch.unknown import Unknown

aten = torch.ops.aten
IS_IN = {aten.isin.Tensor_Tensor, aten.isin.Tensor_Scalar}
EQUAL = {aten.eq.Scalar: True, aten.eq.Tensor: True, **dict.fromkeys(IS_IN, True),
         aten.ne.Scalar: False, aten.ne.Tensor: False}
NEVER = ("no token that was not computed is the end-of-text token, or any other token that it is "
         "compared with (--output-tokens N ends a sequence)")
AS_NUMBER = "a token that was not computed is 0 where its number is needed"
LONG = 512  # tokens after which the user is told why a sequence does not end


class TokenRules:
    """Decides comparisons of tokens that were not computed.

    Attributes:
        last: the output token that is the end-of-text token; None: none is.
        used: whether a comparison was decided.
    """

    def __init__(self, gpu: VirtualGpu, last: int | None) -> None:
        self.gpu, self.last, self.used, self.warned = gpu, last, False, False

    def active(self) -> bool:
        """Return whether integers that were not computed are the tokens of a language model."""
        return self.gpu.inferring and self.gpu.output_tokens > 0

    def matches(self) -> bool:
        """Return whether a token is the one that it is compared with, and record the assumption."""
        self.used = True
        count = self.gpu.output_tokens
        if self.last is None:
            self._warn(count)
            self.gpu.assumptions.note_here(NEVER)
            return False
        self.gpu.assumptions.note_here(
            f"output token {self.last} is the end-of-text token, and no earlier one is "
            "(--output-tokens)")
        return count >= self.last

    def compared(self, func: torch._ops.OpOverload, args: Sequence) -> bool | None:
        """Return the answer of a comparison of unknown tokens with known ones, for all of them.

        Args:
            func: the operation; the answer is None if it is no such comparison.
            args: its positional arguments.
        """
        if func not in EQUAL or not self.active():
            return None
        token, *others = args
        if not isinstance(token, torch.Tensor) or not is_integer(token.dtype):
            return None
        values = self.gpu.values
        one = tensors(others)
        # Several numbers are labels, with which a program measures how often it is right.
        if (values.all_known([token]) or not values.all_known(one)
                or (func not in IS_IN and any(item.dim() for item in one))):
            return None
        return self.matches() == EQUAL[func]

    def equal(self, other: object, frame: FrameType) -> bool:
        """Return whether a token is equal to a number, for the frame that compares them."""
        if is_lookup(frame):
            return other == self.number()
        return self.matches()

    def number(self) -> int:
        """Return the number that stands for a token, as an index or a key."""
        self.gpu.assumptions.note_here(AS_NUMBER)
        return 0

    def _warn(self, count: int) -> None:
        if count >= LONG and not self.warned:
            self.warned = True
            print(f"virtualrun: {count} tokens decoded so far, and no token that was not computed "
                  "ends a sequence; --output-tokens N does, and Ctrl-C prints the report",
                  file=sys.stderr, flush=True)


def is_lookup(frame: FrameType) -> bool:
    """Return whether the frame looks a key up, as in `words[token]`, where equality finds it."""
    code = frame.f_code.co_code
    name = dis.opname[code[frame.f_lasti]]
    return name.startswith("BINARY_SUBSCR")


def is_integer(dtype: torch.dtype) -> bool:
    return not (dtype.is_floating_point or dtype.is_complex or dtype is torch.bool)


def install(gpu: VirtualGpu, last: int | None = None) -> None:
    """Decide comparisons of tokens in this process.

    Args:
        gpu: this process's virtual GPU.
        last: the output token that ends a sequence; None: none does.
    """
    Unknown.tokens = gpu.values.tokens = TokenRules(gpu, last)
