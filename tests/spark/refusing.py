"""What Spark shows a user of our errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


def refusal(call: Callable[[], Any]) -> str:
    """Return the text of the error that a call ends with: ours, without a worker's traceback."""
    with pytest.raises(Exception, match="UPRMC_") as caught:
        call()
    told = str(caught.value)
    assert "Traceback" not in told
    assert 'File "' not in told
    return told
