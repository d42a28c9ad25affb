"""Every setting of a node: default, unit, range and one line of help, checked once.

A setting is named ``section.name`` everywhere: in the TOML file (``[section]`` tables), in the
environment (``UPRMC_SECTION_NAME``), on the command line (``--set section.name=value``) and in
statistics. Later sources win in that order. Whatever is unknown, malformed or out of range is
refused with the reason (`ConfigError`, one line).
"""

from __future__ import annotations

from uprmc.config.described import SettingInfo, Settings, describe, values_of
from uprmc.config.loading import (
    DEFAULT,
    Loaded,
    build,
    from_environment,
    from_file,
    load,
    load_with_origins,
)
from uprmc.config.sections import (
    BUFFER_BYTES,
    FRAME_MAX_BYTES,
    GIB,
    ITEM_LIMIT_MAX_BYTES,
    KIB,
    MIB,
    PURGE_AGE_AUTO,
    UNIX_MODE,
    VIEWS_AUTO,
    VIEWS_DEFAULT,
    EngineSettings,
    FlushSettings,
    HttpSettings,
    IndexSettings,
    KvSettings,
    LogSettings,
    MemorySettings,
    PurgeSettings,
    ServerSettings,
    StorageSettings,
    TapSettings,
    UprSettings,
    XdcrSettings,
    unix_mode,
)

__all__ = [
    "BUFFER_BYTES",
    "DEFAULT",
    "FRAME_MAX_BYTES",
    "GIB",
    "ITEM_LIMIT_MAX_BYTES",
    "KIB",
    "MIB",
    "PURGE_AGE_AUTO",
    "UNIX_MODE",
    "VIEWS_AUTO",
    "VIEWS_DEFAULT",
    "EngineSettings",
    "FlushSettings",
    "HttpSettings",
    "IndexSettings",
    "KvSettings",
    "Loaded",
    "LogSettings",
    "MemorySettings",
    "PurgeSettings",
    "ServerSettings",
    "SettingInfo",
    "Settings",
    "StorageSettings",
    "TapSettings",
    "UprSettings",
    "XdcrSettings",
    "build",
    "describe",
    "from_environment",
    "from_file",
    "load",
    "load_with_origins",
    "unix_mode",
    "values_of",
]
