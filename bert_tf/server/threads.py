"""Threads for calls that may never return."""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Any, TypeVar

_T = TypeVar("_T")


async def in_own_thread(function: Callable[..., _T], *args: Any) -> _T:
    """Calls a function that reads files; a network drive that does not answer holds up neither requests nor the end."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[_T] = loop.create_future()

    def settle(setter: Callable[[Any], None], value: Any) -> None:
        if not future.done():  # else the task that waited is cancelled
            setter(value)

    def call() -> None:
        try:
            outcome: tuple[Callable[[Any], None], Any] = future.set_result, function(*args)
        except Exception as error:
            outcome = future.set_exception, error
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(settle, *outcome)

    # Not of a pool: the process would wait for its threads.
    threading.Thread(target=call, daemon=True).start()
    return await future
