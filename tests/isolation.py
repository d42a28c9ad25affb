"""A plugin: verbs in tests see neither the environment nor the client file of who runs them."""

from __future__ import annotations

import os
import tempfile

from uprmc.cli.node_access import default_path

_OF_VERBS = ("NODE", "VIEWS", "TLS", "TLS_CA", "NO_TLS_VERIFY", "USER", "PASSWORD_FILE", "TIMEOUT")


def pytest_configure() -> None:
    for name in (*_OF_VERBS, "CLIENT_FILE"):
        os.environ.pop(f"UPRMC_{name}", None)
    if default_path().exists():
        os.environ["XDG_CONFIG_HOME"] = tempfile.mkdtemp(prefix="uprmc-tests-")
