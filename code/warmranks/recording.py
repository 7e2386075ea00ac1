"""Run a function on a rank whose communication goes through a broker.

torch is imported late, because the caller imports this module, too, and may not have torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def brokered(function: Callable, keywords: dict[str, Any], *arguments: Any) -> Any:
    """Call a function on this rank with a default process group, and return its value.

    Args:
        function: the function to call.
        keywords: its keyword arguments.
        *arguments: its positional arguments.
    """
    from warmranks import ranked

    with ranked.group_of_this_rank():
        return function(*arguments, **keywords)
