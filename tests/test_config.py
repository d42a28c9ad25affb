"""Settings: where they come from, which source wins, and how a bad one is refused in one line."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uprmc.config import (
    GIB,
    MIB,
    SettingInfo,
    Settings,
    build,
    describe,
    from_environment,
    from_file,
    load,
    load_with_origins,
    values_of,
)
from uprmc.errors import ConfigError

ALL = list(describe())
NUMERIC = [info for info in ALL if info.kind in (int, float)]

# What must accompany a setting at one of its limits, so that no two contradict each other.
COMPANIONS: dict[tuple[str, str], dict[str, Any]] = {
    ("memory.low_mark", "high"): {"memory.high_mark": 0.981, "memory.mutation_limit": 1.0},
    ("memory.high_mark", "low"): {"memory.low_mark": 0.099},
    ("memory.high_mark", "high"): {"memory.mutation_limit": 1.0},
    ("memory.mutation_limit", "low"): {"memory.low_mark": 0.098, "memory.high_mark": 0.099},
    ("storage.map_initial", "high"): {"storage.map_max": 64 * 1024 * GIB},
    ("storage.map_max", "low"): {"storage.map_initial": 1 * MIB},
}


def by_name(infos: list[SettingInfo]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("info", infos, ids=lambda info: info.name)


def refusal(changes: dict[str, Any]) -> str:
    """Return the reason, which is one line."""
    with pytest.raises(ConfigError) as caught:
        build(changes)
    return one_line(caught.value)


def one_line(error: ConfigError) -> str:
    text = str(error)
    assert text
    assert "\n" not in text
    return text


def value(settings: Settings, name: str) -> Any:
    return dict(values_of(settings))[name]


# --- what there is --------------------------------------------------------------------------------


@by_name(ALL)
def test_every_setting_has_a_default_a_unit_and_a_help_line(info: SettingInfo) -> None:
    assert info.unit
    assert info.doc.endswith(".")
    assert "\n" not in info.doc
    assert info.kind in (int, float, bool, str)
    assert type(info.default) is info.kind
    assert build({info.name: info.default}) == Settings(), "the default is allowed"


@by_name(NUMERIC)
def test_every_number_has_a_range_and_its_default_is_in_it(info: SettingInfo) -> None:
    assert info.low is not None
    assert info.high is not None
    assert info.low <= info.default <= info.high


def test_names_are_unique_and_no_two_share_a_variable() -> None:
    names = [info.name for info in ALL]
    assert len(set(names)) == len(names)
    assert len({name.replace(".", "_") for name in names}) == len(names)


def test_nothing_changed_means_the_defaults() -> None:
    assert build({}) == load(None, {}, {}) == Settings()
    assert dict(values_of(Settings())) == {info.name: info.default for info in ALL}


# --- limits ---------------------------------------------------------------------------------------


def beyond(limit: float, step: int, kind: type) -> float:
    """The next number outside."""
    return limit + step if kind is int else math.nextafter(limit, step * math.inf)


@by_name(NUMERIC)
@pytest.mark.parametrize("side", ["low", "high"])
def test_the_limit_is_allowed_and_one_past_it_is_not(info: SettingInfo, side: str) -> None:
    """As a number and as text."""
    limit = getattr(info, side)
    outside = beyond(limit, -1 if side == "low" else 1, info.kind)
    companions = COMPANIONS.get((info.name, side), {})
    for bad in (outside, repr(outside)):
        text = refusal({info.name: bad})
        assert text.startswith(f"{info.name}: ")
        assert ("below the least" if side == "low" else "above the most") in text
    if not all(allowed(name, companions[name]) for name in companions):
        # Alone it passes its own check, and fails against the others.
        assert not refusal({info.name: limit}).startswith(f"{info.name}: ")
        return
    for good in (limit, repr(limit)):
        settings = build({info.name: good, **companions})
        assert value(settings, info.name) == limit
        assert type(value(settings, info.name)) is info.kind


def allowed(name: str, wanted: float) -> bool:
    (info,) = (info for info in NUMERIC if info.name == name)
    assert info.low is not None
    assert info.high is not None
    return info.low <= wanted <= info.high


def refused(info: SettingInfo, *values: object) -> bool:
    """Tell whether each is refused in the setting's name."""
    return all(refusal({info.name: bad}).startswith(f"{info.name}: ") for bad in values)


@by_name(NUMERIC)
def test_a_number_that_is_none_or_makes_no_sense_is_refused(info: SettingInfo) -> None:
    assert refused(info, "", "many", "1 2", "0x10", "nan", "inf", "-inf")
    assert info.low == -1 or refused(info, "-1")


@by_name(ALL)
def test_a_value_of_another_kind_is_refused(info: SettingInfo) -> None:
    assert refused(info, None, [], {}, b"1", object)


@by_name([info for info in NUMERIC if info.kind is int])
def test_a_whole_number_is_neither_a_yes_nor_a_fraction(info: SettingInfo) -> None:
    assert refused(info, True, 20.0)


@by_name([info for info in ALL if info.kind is str])
def test_text_is_text(info: SettingInfo) -> None:
    assert "is not text" in refusal({info.name: 5})


@by_name([info for info in NUMERIC if info.kind is float])
def test_a_number_too_long_for_a_fraction_is_refused(info: SettingInfo) -> None:
    assert refused(info, 10**400, -(10**400))


def test_a_whole_number_will_do_for_a_fraction() -> None:
    settings = build({"flush.max_delay_s": 2})
    assert settings.flush.max_delay_s == 2.0
    assert type(settings.flush.max_delay_s) is float


@pytest.mark.parametrize("name", ["", "nonsense", "memory", "memory.", ".quota", "memory.quotas"])
def test_an_unknown_name_is_refused(name: str) -> None:
    assert repr(name) in refusal({name: 1})


@pytest.mark.parametrize(
    ("text", "expected"),
    [("yes", True), ("TRUE", True), ("1", True), ("no", False), ("False", False), ("0", False)],
)
def test_yes_and_no(text: str, expected: bool) -> None:
    assert build({"flush.sync": text}).flush.sync is expected


@pytest.mark.parametrize("text", ["", "maybe", "2", "yes please"])
def test_neither_yes_nor_no_is_refused(text: str) -> None:
    assert "is not on or off" in refusal({"flush.sync": text})
    assert "yes or no" in refusal({"flush.sync": 1})


def test_a_choice_must_be_one_of_those_there_are() -> None:
    assert build({"log.level": "debug"}).log.level == "debug"
    assert "debug, info, warn, error" in refusal({"log.level": "loud"})
    assert "text, json" in refusal({"log.format": "xml"})


# --- settings that belong together ----------------------------------------------------------------


@pytest.mark.parametrize("count", [0, *(2**power for power in range(11))])
def test_the_number_of_vbuckets_is_a_power_of_two(count: int) -> None:
    assert build({"engine.vbuckets": count}).engine.vbuckets == count


@pytest.mark.parametrize("count", [3, 6, 1_000, 1_023])
def test_any_other_number_of_vbuckets_is_refused(count: int) -> None:
    assert "power of two" in refusal({"engine.vbuckets": count})


@pytest.mark.parametrize(
    "changes",
    [
        {"memory.low_mark": 0.85},
        {"memory.high_mark": 0.75},
        {"memory.high_mark": 0.93},
        {"memory.mutation_limit": 0.85},
        {"memory.low_mark": 0.98},
    ],
)
def test_memory_marks_rise(changes: dict[str, float]) -> None:
    assert "low_mark < high_mark < mutation_limit" in refusal(changes)


@pytest.mark.parametrize("name", ["server.tls_cert", "server.tls_key"])
def test_half_a_certificate_is_refused(name: str) -> None:
    assert "one is missing" in refusal({name: "file.pem"})


def test_the_map_starts_within_its_limit() -> None:
    assert build({"storage.map_initial": MIB, "storage.map_max": MIB}).storage.map_max == MIB
    assert "map_max" in refusal({"storage.map_initial": MIB + 1, "storage.map_max": MIB})


# --- sizes, times, switches -----------------------------------------------------------------------


def test_sizes_times_and_switches_have_units_in_settings() -> None:
    found = build({"memory.quota": "1.5GB", "upr.lease_max_s": "1h", "upr.reading_max_s": "500ms"})
    assert found.memory.quota == 3 * GIB // 2
    assert (found.upr.lease_max_s, found.upr.reading_max_s) == (3_600, 0.5)
    assert [build({"flush.sync": text}).flush.sync for text in ("on", "Off")] == [True, False]


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("memory.quota", "12X", "memory.quota: '12X' is not a size such as"),
        ("upr.reading_max_s", "soon", "upr.reading_max_s: 'soon' is not a time such as"),
        ("upr.lease_max_s", "1500ms", "upr.lease_max_s: '1500ms' is not a whole number of seconds"),
    ],
)
def test_what_has_no_unit_of_ours_is_refused(name: str, text: str, said: str) -> None:
    assert said in refusal({name: text})


@given(text=st.text(max_size=20))
def test_any_text_is_read_or_refused_in_one_line(text: str) -> None:
    for info in ALL:
        try:
            build({info.name: text})
        except ConfigError as error:
            one_line(error)


# --- files ----------------------------------------------------------------------------------------


def written(path: Path, text: str | bytes) -> Path:
    file = path / "uprmc.toml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return file


def test_a_file_sets_what_it_names(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        """
        [memory]
        quota = "2G"
        low_mark = 0.5
        [flush]
        sync = false
        batch_items = 77
        [server]
        memcached = "0.0.0.0:1"
        """,
    )
    settings = load(file, {}, {})
    assert settings.memory.quota == 2 * GIB
    assert settings.memory.low_mark == 0.5
    assert settings.flush.sync is False
    assert settings.flush.batch_items == 77
    assert settings.server.memcached == "0.0.0.0:1"
    assert settings.kv == Settings().kv


def test_an_empty_file_sets_nothing(tmp_path: Path) -> None:
    assert load(written(tmp_path, ""), {}, {}) == Settings()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("quota = 1", "outside of a [section]"),
        ("[memory]\nquotas = 1", "no setting 'memory.quotas'"),
        ("[nonsense]\na = 1", "no setting 'nonsense.a'"),
        ("[memory.quota]\na = 1", "memory.quota: "),
        ("[memory]\nquota = 2020-01-01", "memory.quota: "),
        ("[memory]\nquota = [1]", "memory.quota: "),
        ("[[memory]]\nquota = 1", "outside of a [section]"),
        ("[memory]\nlow_mark = 0.5\nqouta = 1", "uprmc.toml:3: there is no setting 'memory.qouta'"),
        ("# sizes\n[memmory]\nquota = 1", "uprmc.toml:3: there is no setting 'memmory.quota'; did"),
        ("[memmory]", "uprmc.toml:1: there is no section [memmory]; did you mean memory?"),
        ("[memory]\n'quota' = '1Q'", "uprmc.toml:2: memory.quota: '1Q' is not a size"),
        ("memory.quota = 1", "uprmc.toml:1: memory.quota: 1 is below the least"),
        ("memory = {quota = 1}", "uprmc.toml: memory.quota: 1 is below the least"),
        ("\n[memory\n", "uprmc.toml:2: Expected"),
        ("[memory]\nquota = ", "uprmc.toml:2: Invalid value"),
        ("[memory]\nquota = 1\nquota = 2", "uprmc.toml:3: Cannot overwrite a value"),
        (b"[memory]\n# \xff", "uprmc.toml:2: is not text in UTF-8"),
        (b"\xff\xfe[", "uprmc.toml"),
        ("[flush]\nbatch_items = " + "9" * 5_000, "uprmc.toml"),
    ],
)
def test_a_file_that_makes_no_sense_is_refused(
    tmp_path: Path, text: str | bytes, reason: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load(written(tmp_path, text), {}, {})
    assert reason in one_line(caught.value)


@pytest.mark.parametrize("kind", ["absent", "directory"])
def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path, kind: str) -> None:
    path = tmp_path if kind == "directory" else tmp_path / "absent.toml"
    with pytest.raises(ConfigError) as caught:
        from_file(path)
    assert str(path) in one_line(caught.value)


# --- environment and precedence -------------------------------------------------------------------


def test_the_environment_sets_what_it_names() -> None:
    environment = {"UPRMC_MEMORY_QUOTA": "64M", "UPRMC_FLUSH_SYNC": "no", "PATH": "/bin"}
    settings = load(None, environment, {})
    assert settings.memory.quota == 64 * MIB
    assert settings.flush.sync is False


@by_name(ALL)
def test_every_setting_has_a_variable(info: SettingInfo) -> None:
    variable = "UPRMC_" + info.name.replace(".", "_").upper()
    assert from_environment({variable: "text"}) == {info.name: "text"}


@pytest.mark.parametrize("variable", ["UPRMC_", "UPRMC_MEMORY", "UPRMC_MEMORY_QUOTAS"])
def test_a_variable_that_names_no_setting_is_refused(variable: str) -> None:
    with pytest.raises(ConfigError) as caught:
        from_environment({variable: "1"})
    assert variable in one_line(caught.value)
    assert variable != "UPRMC_MEMORY_QUOTAS" or "mean UPRMC_MEMORY_QUOTA?" in str(caught.value)


def test_each_value_is_known_with_what_set_it(tmp_path: Path) -> None:
    file = written(tmp_path, "[memory]\nquota = '1G'\n\n[flush]\nsync = true\nbatch_items = 7")
    environment = {"UPRMC_FLUSH_SYNC": "no", "UPRMC_LOG_LEVEL": "warn"}
    options = {"log.level": "info", "kv.max_line_bytes": 1_024}
    loaded = load_with_origins(file, environment, options, {"log.level": "--set"})
    assert loaded.settings == load(file, environment, options)
    assert loaded.origins == {
        "memory.quota": f"{file}:2",
        "flush.sync": "UPRMC_FLUSH_SYNC",
        "flush.batch_items": f"{file}:6",
        "log.level": "--set",
        "kv.max_line_bytes": "option",
    }


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("memory.qouta", "memory.quota"),
        ("memmory.quota", "memory.quota"),
        ("quota", "memory.quota"),
        ("server.quota", "memory.quota"),
        ("udr.silence_s", "xdcr.silence_s"),
        ("upr.redial_max", "upr.redial_max_s"),
    ],
)
def test_an_unknown_setting_is_answered_with_the_nearest_one(name: str, meant: str) -> None:
    assert refusal({name: 1}) == f"there is no setting {name!r}; did you mean {meant}?"


def test_options_win_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    file = written(tmp_path, "[flush]\nbatch_items = 1\nrest_factor = 1\nfetch_batch = 1")
    environment = {"UPRMC_FLUSH_REST_FACTOR": "2", "UPRMC_FLUSH_FETCH_BATCH": "2"}
    flush = load(file, environment, {"flush.fetch_batch": "3"}).flush
    assert (flush.batch_items, flush.rest_factor, flush.fetch_batch) == (1, 2, 3)


def test_what_is_overruled_is_not_judged(tmp_path: Path) -> None:
    file = written(tmp_path, "[flush]\nbatch_items = 0")
    assert load(file, {}, {"flush.batch_items": 5}).flush.batch_items == 5


def test_settings_cannot_be_changed_afterwards() -> None:
    with pytest.raises(AttributeError):
        Settings().memory.quota = 1  # type: ignore[misc]


def test_the_largest_item_must_fit_into_the_quota_and_into_a_frame() -> None:
    build({"memory.quota": "8M", "kv.max_item_bytes": int(8 * MIB * 0.93)})
    with pytest.raises(ConfigError, match=r"would not fit into memory\.quota"):
        build({"memory.quota": "8M", "kv.max_item_bytes": int(8 * MIB * 0.93) + 1})
    build({"kv.max_frame_bytes": "3M", "kv.max_item_bytes": "2M"})
    with pytest.raises(ConfigError, match="1 MiB below"):
        build({"kv.max_frame_bytes": "3M", "kv.max_item_bytes": 2 * MIB + 1})


def test_an_item_fits_twice_into_what_connections_may_hold() -> None:
    build({"server.buffer_bytes": "4M", "kv.max_item_bytes": "2M"})
    with pytest.raises(ConfigError, match=r"server\.buffer_bytes"):
        build({"server.buffer_bytes": "4M", "kv.max_item_bytes": 2 * MIB + 1})
