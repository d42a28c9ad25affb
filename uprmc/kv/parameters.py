"""SET_PARAM: settings that may change while the node runs, under the names that tools know.

A parameter is one of our settings with another name and another unit, so its range is that
setting's, and `Bucket.settings` always contains the value in force. Names that tools know but that
have no meaning here (checkpoints, TAP throttles, access log) are unknown: accepting them would be
an empty promise.

Source: UPR reference, section 6; ep-engine's `cbepctl` for the names and units.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from uprmc import units
from uprmc.config import Settings, build, values_of
from uprmc.engine.bucket import Bucket
from uprmc.errors import ConfigError, InvalidArguments, KeyNotFound
from uprmc.kv.control import Control
from uprmc.protocol.management import ParamGroup

#: Longest name and value, in bytes, as in ep-engine.
NAME_MAX_BYTES = 31
VALUE_MAX_BYTES = 511


def _as_it_is(text: str, _settings: Settings) -> str:
    return text


def _percent(text: str, _settings: Settings) -> float:
    return float(text.removesuffix("%")) / 100


def _share(text: str, settings: Settings) -> float:
    """Turn bytes, or a percentage, into a share of the quota that gives the same bytes again."""
    if text.endswith("%"):
        return _percent(text, settings)
    return (units.size(text) + 0.5) / settings.memory.quota


class _Parameter(NamedTuple):
    setting: str
    convert: Callable[[str, Settings], Any] = _as_it_is


_PARAMETERS = {
    "max_size": _Parameter("memory.quota"),
    "mem_low_wat": _Parameter("memory.low_mark", _share),
    "mem_high_wat": _Parameter("memory.high_mark", _share),
    "mutation_mem_threshold": _Parameter("memory.mutation_limit", _percent),
    "exp_pager_stime": _Parameter("engine.expiry_interval_s"),
    "min_data_age": _Parameter("flush.min_delay_s"),
    "queue_age_cap": _Parameter("flush.max_delay_s"),
    "max_txn_size": _Parameter("flush.batch_items"),
}


def set_parameter(bucket: Bucket, control: Control, group: int, name: str, text: str) -> None:
    """Change a parameter of the running node, at once and until it stops.

    Raises:
        KeyNotFound: no parameter of that group has this name.
        InvalidArguments: there is no such group, or the value is malformed or out of range; the
            text says why.
    """
    try:
        in_group = ParamGroup(group) is ParamGroup.FLUSH
    except ValueError:
        raise InvalidArguments(f"there is no group {group} of parameters") from None
    parameter = _PARAMETERS.get(name) if in_group else None
    if parameter is None:
        raise KeyNotFound(f"there is no parameter {name!r} in this group")
    before = bucket.settings
    try:
        value = parameter.convert(text, before)
        after = build({**dict(values_of(before)), parameter.setting: value})
    except (ConfigError, ValueError, OverflowError) as error:
        raise InvalidArguments(f"{name}: {error}") from None
    bucket.settings = after
    _apply(bucket, control, before, after)


def _apply(bucket: Bucket, control: Control, before: Settings, after: Settings) -> None:
    if after.memory != before.memory:
        bucket.account.set_quota(after.memory.quota, after.memory)
        bucket.account.exhausted = False  # it was a share of the old quota
    if after.flush != before.flush:
        bucket.flusher.configure(after.flush)
    if after.engine.expiry_interval_s != before.engine.expiry_interval_s:
        control.expire_every(after.engine.expiry_interval_s)
