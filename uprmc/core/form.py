"""Which form of the core runs in this process.

The compiled one is used where it is built from the present sources. An extension that was built
from others is never used: edit a source, and the interpreted form runs until the next build.
``UPRMC_CORE=interpreted`` or ``compiled`` demands one of them.
"""

from __future__ import annotations

import os
from importlib import import_module
from importlib.machinery import EXTENSION_SUFFIXES

from uprmc.core.sources import fingerprint
from uprmc.errors import ConfigError

VARIABLE = "UPRMC_CORE"
INTERPRETED, COMPILED = "interpreted", "compiled"


def choose(wanted: str, built: str | None, present: str) -> tuple[str, str]:
    """Choose a form.

    Args:
        wanted: the variable's value, empty for none.
        built: fingerprint of the sources that the extension was made from, ``None`` without one.
        present: fingerprint of the sources that are here.

    Returns:
        the form, and what to tell the operator about it, which is mostly nothing.

    Raises:
        ConfigError: the demanded form is not available, or there is no such form.
    """
    if wanted not in ("", INTERPRETED, COMPILED):
        raise ConfigError(f"{VARIABLE} is {INTERPRETED!r} or {COMPILED!r}, not {wanted!r}")
    if wanted == INTERPRETED:
        return INTERPRETED, ""
    if built == present:
        return COMPILED, ""
    flaw = "the core is not compiled" if built is None else "the compiled core has other sources"
    if wanted == COMPILED:
        raise ConfigError(f"{VARIABLE}={COMPILED}, but {flaw}: install again, with a C compiler")
    return INTERPRETED, flaw if built else ""


def built_from() -> str | None:
    """Return the fingerprint in the extension, ``None`` if there is none that can be imported.

    The table is imported, too, because it needs a library that the stamp does not need.
    """
    try:
        import_module("uprmc.core.native.table")
        stamp = import_module("uprmc.core.native.stamp")
    except ImportError:
        return None
    if not str(stamp.__file__).endswith(tuple(EXTENSION_SUFFIXES)):
        return None
    return str(stamp.FINGERPRINT)


FORM, NOTICE = choose(os.environ.get(VARIABLE, ""), built_from(), fingerprint())
