"""What decorators make of a function: each call, or each step of it, runs in a block.

Generators and coroutines are suspended between their steps. A block belongs to its thread, so it is
closed meanwhile, or the code that runs in between would be inside it.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import types
from collections.abc import Awaitable, Callable, Generator
from contextlib import AbstractContextManager
from typing import Any

from lazyeng import errors

Block = Callable[[], AbstractContextManager[Any]]
Function = Callable[..., Any]


def in_blocks(
    function: Function, block: Block = contextlib.nullcontext, whole: Block = contextlib.nullcontext
) -> Function:
    """`function` with each call in a block; of the kind (generator, coroutine) that it has.

    Args:
        block: entered for each step, and left while the function is suspended.
        whole: entered once for all steps of a call.
    """
    if inspect.isasyncgenfunction(function):
        made = _async_generator(function, block, whole)
    elif inspect.iscoroutinefunction(function):
        made = _coroutine(function, block, whole)
    elif inspect.isgeneratorfunction(function):
        made = _generator(function, block, whole)
    else:
        made = _in_block(_in_block(function, block), whole)
    return functools.update_wrapper(made, function)


class _hidden_frames:  # noqa: N801
    """A failure leaves it without frames of ours."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, _cls: Any, error: BaseException | None, _traceback: Any) -> None:
        if error is not None:
            errors.hide_in_deferred(error)


def _in_block(function: Function, block: Block) -> Function:
    def call(*args: Any, **kwargs: Any) -> Any:
        with _hidden_frames(), block():
            return function(*args, **kwargs)

    return call


def _generator(function: Function, block: Block, whole: Block) -> Function:
    def generator(*args: Any, **kwargs: Any) -> Any:
        running = function(*args, **kwargs)
        steps = _steps(running.send, None, running.throw, block)
        step: Function = steps.send
        given: list[Any] = [None]
        try:
            with _hidden_frames(), whole():
                while True:
                    try:
                        made = [step(given.pop())]
                    except StopIteration as end:
                        return end.value
                    try:
                        step, given = steps.send, [(yield made.pop())]
                    except BaseException as error:  # (`yield from` would close it at GeneratorExit)
                        step, given = steps.throw, [error]
        finally:
            given.clear()  # an exception, whose traceback holds this frame

    return generator


def _coroutine(function: Function, block: Block, whole: Block) -> Function:
    async def coroutine(*args: Any, **kwargs: Any) -> Any:
        running = function(*args, **kwargs)
        with _hidden_frames(), whole():
            return await _awaited_steps(running.send, None, running.throw, block)

    return coroutine


def _async_generator(function: Function, block: Block, whole: Block) -> Function:
    async def generator(*args: Any, **kwargs: Any) -> Any:
        running = function(*args, **kwargs)
        step, value = running.asend, None
        try:
            with whole():
                while True:
                    item, value = _without_hooks(step, value), None
                    try:
                        with _hidden_frames():
                            made = [await _awaited_steps(item.send, None, item.throw, block)]
                    except StopAsyncIteration:
                        return
                    try:
                        step, value = running.asend, (yield made.pop())
                    except BaseException as error:  # for the function, which may go on
                        step, value = running.athrow, error
        finally:
            value = item = None  # an exception, whose traceback holds this frame

    return generator


def _without_hooks(step: Function, value: Any) -> Any:
    """An event loop closes the generators that it hears of: of these, by way of ours."""
    hooks = sys.get_asyncgen_hooks()
    sys.set_asyncgen_hooks(None, None)
    try:
        return step(value)
    finally:
        sys.set_asyncgen_hooks(*hooks)


def _steps(send: Function, value: Any, throw: Function, block: Block) -> Generator[Any, Any, Any]:
    """Steps of a generator or coroutine to its end, each in a block; outside while suspended."""
    advance = _in_block(_advance, block)
    step = send
    try:
        while True:
            call = [value, step]
            step = value = None
            made, end = advance(call)
            if isinstance(end, StopIteration):
                return end.value
            if end is not None:
                raise end
            handed_over, made = [made], None  # (who is suspended does not keep what it has yielded)
            try:
                step, value = send, (yield handed_over.pop())
            except BaseException as error:  # for the function, which may go on
                step, value = throw, error
    finally:
        # (They have exceptions, whose tracebacks have this frame.)
        del value, send, throw, step
        end = None


_awaited_steps: Callable[..., Awaitable[Any]] = types.coroutine(_steps)


def _advance(call: list[Any]) -> tuple[Any, BaseException | None]:
    """What a step yields, or its end: no exception, on which a failure would only be a note. The
    list is emptied: no frame of ours is to hold an exception whose traceback it is part of."""
    try:
        return call.pop()(call.pop()), None
    except (StopIteration, StopAsyncIteration) as end:
        return None, end
