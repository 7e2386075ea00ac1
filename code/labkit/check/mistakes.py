"""Advice on the messages that Python and PyTorch have for common mistakes."""

from __future__ import annotations

import re

UNANSWERED = "The cell above still waits for your answer."
# Messages and advice. The first match counts.
MISTAKES = tuple((re.compile(pattern), advice) for pattern, advice in (
    (r"\bNotImplementedError\b", UNANSWERED),
    (r"\bNoneType\b", "Something is None here. Does a function end without `return`? Or does a "
     "parameter have no gradient? (`.grad` is None until a backward pass has used the parameter.)"),
    (r"AttributeError: '(\w+)' object has no attribute '(\w+)'",
     r"\1 has no `\2`, which the line below uses. Is it defined, and spelled correctly?"),
    (r"ImportError: cannot import name '(\w+)' from '([\w.]+)'",
     r"\2 does not define `\1`. Is it there, and spelled correctly?"),
    (r"No module named '(mytrainer[\w.]*)'", r"Run the cell that writes the module \1."),
    (r"TypeError: [\w.<>]+\(\) (?:takes|missing|got)\b",
     "A call and its function disagree about the arguments. If it is your own function, keep the "
     "line that begins with def as it was."),
    (r"have (?:the )?same dtype|expected scalar type|Found dtype|can't be cast to|must match dtype",
     "Two tensors have different dtypes here. `torch.empty_like(x)` and `x.new_zeros(...)` keep "
     "the dtype of x."),
    (r"size of tensor a|must match the s|shapes cannot be multiplied|is invalid for input of size|"
     r"output with shape|Sizes of tensors must match|shape mismatch|same number of elements",
     "Two tensors have shapes that do not fit together here. Print both just before this line.")))


def advice(text: str) -> str:
    """Return advice on an error, given its class and message, perhaps with a traceback; empty for
    one that is not known."""
    for pattern, found in MISTAKES:
        if match := pattern.search(text):
            return match.expand(found)
    return ""
