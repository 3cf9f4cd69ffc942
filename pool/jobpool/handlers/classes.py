"""Classes as handlers: what fits, and the function that a fitting one becomes."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from jobpool.errors import ConfigurationError

METHODS = ("run", "__call__")
"""Methods to call, the first that there is."""


def as_function(cls: type, name: str) -> Callable[..., Any]:
    """Return a function that makes an instance of `cls` and calls its `run`, or `__call__`. `name`: the handler's.

    Raises:
        ConfigurationError: The class does not fit; the text says where it is and why.
    """
    method = next((known for known in METHODS if _is_plain(cls, known)), None)
    if method is None:
        raise ConfigurationError(
            f"handler {name!r}: class {_shown(cls)} has neither a method run(self, ctx, …) nor __call__(self, ctx, …)"
        )
    _check_made_without_arguments(cls, name)

    @functools.wraps(getattr(cls, method))
    def function(ctx: Any, /, *args: Any, **fields: Any) -> Any:
        return getattr(cls(), method)(ctx, *args, **fields)

    signature = inspect.signature(getattr(cls, method))
    own, *others = signature.parameters.values()
    kept = [own] if own.kind is inspect.Parameter.VAR_POSITIONAL else []
    function.__signature__ = signature.replace(parameters=[*kept, *others])  # type: ignore[attr-defined]
    function.__name__, function.__doc__ = cls.__name__, cls.__doc__
    return function


def _is_plain(cls: type, method: str) -> bool:
    """Return whether it is a method of instances, with a place for one."""
    found = inspect.getattr_static(cls, method, None)
    if not inspect.isfunction(found):
        return False
    return any(
        parameter.kind is not inspect.Parameter.VAR_KEYWORD and parameter.kind is not inspect.Parameter.KEYWORD_ONLY
        for parameter in inspect.signature(found).parameters.values()
    )


def _check_made_without_arguments(cls: type, name: str) -> None:
    if inspect.isabstract(cls):
        missing = ", ".join(sorted(cls.__abstractmethods__))  # type: ignore[attr-defined]
        raise ConfigurationError(f"handler {name!r}: class {_shown(cls)} is abstract: {missing} is not written")
    try:
        inspect.signature(cls).bind()
    except TypeError as error:
        raise ConfigurationError(
            f"handler {name!r}: class {_shown(cls)} is made anew for each attempt, without arguments: {error}"
        ) from None
    except ValueError:
        return  # a builtin that does not tell


def _shown(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"
