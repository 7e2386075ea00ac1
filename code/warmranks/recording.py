"""Run a function on a rank with recorded communication.

torch is imported late, because the caller imports this module, too, and may not have torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from warmranks.records import RankRecord


def recorded(function: Callable, keywords: dict[str, Any], *arguments: Any) -> RankRecord:
    """Call a function on this rank with a recording process group, and return the record.

    The default process group and all groups that the function creates use gloo.

    Args:
        function: the function to call.
        keywords: its keyword arguments.
        *arguments: its positional arguments.
    """
    import torch.distributed as dist

    from warmranks.recorder import CallRecorder, register

    recorder = CallRecorder()
    register(recorder)
    dist.init_process_group("recorded")
    with recorder:
        value = function(*arguments, **keywords)
    return RankRecord(value, tuple(map(recorder.to_record, recorder.calls)), recorder.flops)
