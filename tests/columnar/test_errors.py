"""Errors cross from workers to the driver by pickle, and say the same there."""

from __future__ import annotations

import importlib
import pickle
import pkgutil
from collections.abc import Iterator

import pytest

import uprmc.spark
from uprmc.columnar.errors import RolledBack
from uprmc.remote.errors import ClientError


def _kinds(kind: type[ClientError]) -> Iterator[type[ClientError]]:
    yield kind
    for each in kind.__subclasses__():
        yield from _kinds(each)


def _every_kind() -> list[type[ClientError]]:
    """All of them, those too that modules keep for themselves."""
    for module in pkgutil.iter_modules(uprmc.spark.__path__):
        if module.name not in ("source", "stream_source", "sink", "worker"):
            importlib.import_module(f"uprmc.spark.{module.name}")
    ours = (f"uprmc.{each}." for each in ("backup", "columnar", "jobs", "load", "remote", "spark"))
    found = {each for each in _kinds(ClientError) if each.__module__.startswith(tuple(ours))}
    return sorted(found, key=lambda kind: kind.__name__)


@pytest.mark.parametrize("kind", _every_kind())
def test_an_error_is_the_same_on_the_other_side(kind: type[ClientError]) -> None:
    error = RolledBack(3, 9, 5, "advice") if kind is RolledBack else kind("vb=3: é")
    error.shows_code = True
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert (str(again), vars(again)) == (str(error), vars(error))
    assert str(error).startswith(f"{kind.code} ")
    assert kind.code.startswith("UPRMC_")
    error.shows_code = False
    assert str(error) == error.text
