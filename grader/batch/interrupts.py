"""Keep Ctrl-C out of code that must run to its end, such as entering a grade."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def deferred_interrupts() -> Iterator[None]:
    """Defer signals that would raise KeyboardInterrupt inside the block; raise it afterwards.

    Raised inside a database statement, it would make SQLAlchemy drop the connection, and with it
    whatever the transaction had written. An exception of the block itself takes precedence.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # Python raises KeyboardInterrupt in the main thread only
        return
    arrived, is_held = [], True

    def hold(number: int, frame: Any) -> None:
        if is_held:
            arrived.append(number)
        else:  # in the middle of the restoration below
            signal.default_int_handler(number, frame)

    raising = [number for number in SIGNALS
               if signal.getsignal(number) is signal.default_int_handler]
    try:
        for number in raising:
            signal.signal(number, hold)
        yield
    finally:
        is_held = False
        for number in raising:
            signal.signal(number, signal.default_int_handler)
    if arrived:
        raise KeyboardInterrupt
