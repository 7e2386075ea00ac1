"""The entry point of a rank whose communication is recorded.

torch is imported late, because the caller only names this module's function and may not have torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from warmranks.records import Record


def recorded(function: Callable, keywords: dict[str, Any], *arguments: Any) -> Record:
    """Call a function on this rank with a recording process group, and return the record.

    The default process group and all groups that the function creates use gloo.

    Args:
        function: the function to call.
        keywords: its keyword arguments.
        *arguments: its positional arguments.
    """
    import torch.distributed as dist

    from warmranks.recorder import Recorder, register

    recorder = Recorder()
    register(recorder)
    dist.init_process_group("recorded")
    with recorder:
        value = function(*arguments, **keywords)
    return Record(value, tuple(map(recorder.call, recorder.begun)), recorder.flops)
