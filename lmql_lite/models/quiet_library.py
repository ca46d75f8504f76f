"""Silence of transformers while a model is loaded: the library prints nothing (law 7)."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any


@contextmanager
def quiet() -> Iterator[None]:
    """Suppresses warnings, log lines and progress bars, and restores the user's settings afterwards."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers.utils import logging as library

        bars: Any = library
        loggers = [logging.getLogger(name) for name in ("transformers", "huggingface_hub")]
        levels, shown = [logger.level for logger in loggers], bars.is_progress_bar_enabled()
        for logger in loggers:
            logger.setLevel(logging.CRITICAL + 1)
        bars.disable_progress_bar()
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
            if shown:
                bars.enable_progress_bar()


@contextmanager
def without_bars(module: Any) -> Iterator[None]:
    """Suppresses the progress bars that a module of transformers draws with tqdm itself, whatever the library's
    settings are."""
    bar = vars(module).get("tqdm")
    if bar is None:
        yield
        return
    module.tqdm = partial(bar, disable=True)
    try:
        yield
    finally:
        module.tqdm = bar
