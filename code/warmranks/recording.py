"""What happens in a rank whose communication is recorded.

torch is imported late: the caller's process names this module's function and need not have torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from warmranks.records import Record


def recorded(function: Callable, keywords: dict[str, Any], *arguments: Any) -> Record:
    """Call a function on this rank with a recording process group, and return the record.

    The default process group, and those that the function makes, use gloo.

    Args:
        function: to call.
        keywords: its keyword arguments.
        *arguments: its positional ones.
    """
    import torch.distributed as dist

    from warmranks.recorder import Recorder, register

    recorder = Recorder()
    register(recorder)
    dist.init_process_group("recorded")
    with recorder:
        value = function(*arguments, **keywords)
    return Record(value, tuple(map(recorder.call, recorder.begun)), recorder.flops)
