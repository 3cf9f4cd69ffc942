"""Importing the user's application: modules by name or by path, and what is wrong with them in one sentence."""

from __future__ import annotations

import importlib
import importlib.util
import os
import signal
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path

from jobpool.errors import ConfigurationError, JobpoolError
from jobpool.handlers.registry import DEFAULT
from jobpool.ipc.frames import HandlerInfo
from jobpool.ipc.process_options import ChildOptions
from jobpool.message.allowances import Allowances

_OURS = str(Path(__file__).parents[1]) + os.sep


def load(options: ChildOptions, *, may_be_empty: bool = False) -> list[HandlerInfo]:
    """Import `options.apps`, in order, and return what handlers they registered, and the built-in ones.

    The working directory, and before it `options.sys_path`, come first on `sys.path`. An app that is imported already
    costs nothing. `may_be_empty`: it may register no handler at all. Blocks as long as the imports take.

    Raises:
        ConfigurationError: An app is not there, does not import, registers nothing that a job could call, or a handler
            cannot be called.
    """
    _extend_path([*options.sys_path, os.getcwd()])
    for app in options.apps:
        _import(app)
    DEFAULT.allow(Allowances(**options.allowances))
    if options.apps and not may_be_empty and (why := DEFAULT.why_empty()):
        packages = (app for app in options.apps if hasattr(sys.modules.get(app), "__path__"))
        inside = "".join(f"; if a module of it does, name that: --app {app}.MODULE" for app in packages)
        raise ConfigurationError(f"{', '.join(options.apps)} {why}{inside}")
    DEFAULT.prepare()
    DEFAULT.restrict(options.queue_handlers)
    return DEFAULT.infos_with_schedules()


def _extend_path(folders: list[str]) -> None:
    for folder in reversed(folders):
        if folder in sys.path:
            sys.path.remove(folder)
        sys.path.insert(0, folder)


def _import(app: str) -> None:
    try:
        if app.endswith(".py") or "/" in app:
            _import_file(Path(app).resolve())
        else:
            importlib.import_module(app)
    except ConfigurationError as error:
        raise ConfigurationError(f"the app {app} does not import: {error}") from error
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) and callable(signal.getsignal(signal.SIGINT)):
            raise  # of a person; a pool ignores the signal while it imports
        refused = ConfigurationError(_why(app, error))
        if stack := _stack(error):
            refused.add_note(stack)
        raise refused from error


def _import_file(path: Path) -> None:
    if not path.is_file():
        raise ConfigurationError("there is no such file")
    if known := sys.modules.get(name := path.stem):
        if getattr(known, "__file__", None) == str(path):
            return
        raise ConfigurationError(f"its name is that of another module, {name!r}: rename the file")
    _extend_path([str(path.parent)])
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigurationError("it is not a Python file")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise


def _why(app: str, error: BaseException) -> str:
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    if missing and f"{app}.".startswith(f"{missing}."):
        return (
            f"there is no module {missing!r} for the app {app}: looked in {os.getcwd()} and on sys.path;"
            " give a module's name or the path of a .py file"
        )
    frames = _frames(error)
    where = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    if missing:
        hint = find_module(missing, Path(frames[-1].filename).parents) if frames else ""
        return f"the app {app} needs the module {missing!r}, which is not installed{where}{hint}"
    if isinstance(error, SyntaxError) and error.lineno is not None:
        return f"the app {app} does not import: {error.filename}:{error.lineno}: {error.msg}"
    if isinstance(error, SystemExit):
        return f"the app {app} called sys.exit({error.code!r}) while it was imported{where}"
    try:
        text = str(error).partition("\n")[0]
    except Exception:  # noqa: BLE001 - the error's own code runs here
        text = "it cannot be shown"
    if isinstance(error, ImportError) and text.endswith("no known parent package"):
        path = Path(frames[0].filename if frames else app).resolve()
        text += f"; a file is imported on its own: name the module, {as_module(path)}"
    elif isinstance(error, ImportError) and error.path == str(Path(app).resolve()):  # Python says so of modules alone
        text += " (most likely due to a circular import)"
    elif type(error).__module__ == "django.core.exceptions" and not app.startswith("jobpool."):
        where += "; start a Django project as `python manage.py jobpool`"
    return f"the app {app} does not import: {type(error).__name__}{text and ': '}{text}{where}"


def find_module(name: str, folders: Iterable[Path]) -> str:
    """Return a hint that the module is in one of these folders, which are not on sys.path; "" if it is not."""
    found = (at for at in folders if (at / name / "__init__.py").is_file() or (at / f"{name}.py").is_file())
    folder = next(found, None)
    return f"; it is in {folder}: set PYTHONPATH={folder}, or install your project (pip install -e .)" if folder else ""


def as_module(path: Path) -> str:
    """Return the option that names a file in a package, or a package's folder, as a module. `path`: absolute.

    It is followed by the folder to start in, if that is not the working directory.
    """
    outside = (folder for folder in path.parents[path.is_file() :] if not (folder / "__init__.py").is_file())
    root, here = next(outside, path.parent), Path.cwd()
    if str(root) not in sys.path and root.is_relative_to(here):
        root = here
    option = f"--app {'.'.join(path.relative_to(root).parts).removesuffix('.py')}"
    return option if root == here or str(root) in sys.path else f"{option}, started in {root}"


def _stack(error: BaseException) -> str:
    """Return the traceback from the app's first line on; "" where the sentence, with its one place, says all."""
    if len(_frames(error)) < 2 or isinstance(error, SystemExit | JobpoolError):
        return ""
    below = error.__traceback__
    while below is not None and _is_machinery(below.tb_frame.f_code.co_filename):
        below = below.tb_next
    return "".join(traceback.format_exception(type(error), error, below)).rstrip("\n")


def _frames(error: BaseException) -> list[traceback.FrameSummary]:
    """Return the frames outside Python's own import machinery and this package, the innermost last."""
    return [frame for frame in traceback.extract_tb(error.__traceback__) if not _is_machinery(frame.filename)]


def _is_machinery(file: str) -> bool:
    return file.startswith(("<frozen", _OURS)) or "importlib" in file
