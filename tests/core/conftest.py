"""Both forms of the core; the compiled one only where this process may use it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from uprmc.core.form import COMPILED, FORM
from uprmc.core.records import DictRecords, Records


@pytest.fixture(scope="module", params=["interpreted", "compiled"])
def new_records(request: pytest.FixtureRequest) -> Callable[[], Records]:
    """What makes the records of a table, in each form."""
    if request.param == "interpreted":
        return DictRecords
    if FORM != COMPILED:
        pytest.skip("the compiled core is not in use: no C compiler, or UPRMC_CORE")
    from uprmc.core.native.table import RecordTable

    return RecordTable
