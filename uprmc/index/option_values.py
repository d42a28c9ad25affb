"""Values of a query's options, each read by itself: from the text of a URL, or from a JSON body.

Source: systems reference c.8.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from uprmc.index.errors import bad_request
from uprmc.index.json_text import strict_json
from uprmc.index.model import Stale, Token
from uprmc.index.rows import id_bytes, id_text

__all__ = [
    "ALIASES",
    "JSON_OPTIONS",
    "OPTIONS",
    "STALE",
    "UPDATE",
    "json_of",
    "token_of",
]

#: Longest wait that a request may ask for.
TIMEOUT_MAX_MS = 86_400_000

#: Most keys of one request, and most versions that it waits for.
KEYS_MAX = 100_000
TOKENS_MAX = 4_096

_NUMBER = re.compile(r"[0-9]{1,18}", re.ASCII)
_TOKEN = re.compile(r"([0-9]{1,5}):([0-9]{1,20}):([0-9]{1,20})", re.ASCII)
_U64_MAX = 2**64 - 1

ALIASES = {
    "start_key": "startkey",
    "end_key": "endkey",
    "start_key_doc_id": "startkey_docid",
    "start_key_docid": "startkey_docid",
    "end_key_doc_id": "endkey_docid",
    "end_key_docid": "endkey_docid",
}

STALE = {"ok": Stale.OK, "update_after": Stale.UPDATE_AFTER, "false": Stale.FALSE}
UPDATE = {"true": Stale.FALSE, "false": Stale.OK, "lazy": Stale.UPDATE_AFTER}


# --- each option --------------------------------------------------------------------------------


def json_of(name: str, text: str) -> Any:
    """Return the value of an option of a URL that is JSON; raise `Refused`."""
    try:
        return strict_json(text)
    except ValueError as error:
        hint = "; a string needs quotes" if re.match(r"[A-Za-z_]", text) else ""
        raise bad_request(f"the value of {name} {error}{hint}") from None


def _switch(name: str, value: Any) -> bool:
    if value is True or value == "true":
        return True
    if value is False or value == "false":
        return False
    raise bad_request(f"{name} is true or false")


def _count(name: str, value: Any) -> int:
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 10**18:
        return value
    raise bad_request(f"{name} is a whole number from 0")


def _milliseconds(name: str, value: Any) -> int:
    found = _count(name, value)
    if not 1 <= found <= TIMEOUT_MAX_MS:
        raise bad_request(f"{name} is a number of milliseconds from 1 to {TIMEOUT_MAX_MS}")
    return found


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise bad_request(f"{name} is a string")
    return value


def _docid(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise bad_request(f"{name} is a string")
    try:
        return id_text(id_bytes(value))  # with the bytes of an URL that are no UTF-8 as shown
    except UnicodeError:
        raise bad_request(f"{name} is no document's id: it has half of a character") from None


def _word(*words: str) -> Callable[[str, Any], str]:
    def read(name: str, value: Any) -> str:
        word = json.dumps(value) if isinstance(value, bool) else value
        if isinstance(word, str) and word in words:
            return word
        raise bad_request(f"{name} is one of {', '.join(words)}")

    return read


def _keys(name: str, value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise bad_request(f"{name} is an array of keys")
    if len(value) > KEYS_MAX:
        raise bad_request(f"{name} has more than {KEYS_MAX} keys")
    return value


def _tokens(name: str, value: Any) -> list[str]:
    texts = value.split(",") if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise bad_request(f"{name} is a list of vb:uuid:seqno with commas between them")
    if len(texts) > TOKENS_MAX:
        raise bad_request(f"{name} has more than {TOKENS_MAX} versions")
    for text in texts:
        token_of(name, text)
    return texts


def token_of(name: str, text: str) -> Token:
    """Return a version as ``vb:uuid:seqno`` says it; raise `Refused`."""
    found = _TOKEN.fullmatch(text.strip())
    if found is None or max(int(found[2]), int(found[3])) > _U64_MAX:
        raise bad_request(f"{name}: {text!r} is not vb:uuid:seqno")
    return Token(int(found[1]), int(found[2]), int(found[3]))


def _partitions(name: str, value: Any) -> dict[str, list[int]]:
    fits = isinstance(value, dict) and all(
        isinstance(vbuckets, list) and all(_is_vbucket(each) for each in vbuckets)
        for vbuckets in value.values()
    )
    if not fits:
        raise bad_request(f'{name} is an object such as {{"HOST:PORT": [0, 1]}}')
    found: dict[str, list[int]] = value
    return found


def _is_vbucket(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 65_536


def _any(name: str, value: Any) -> Any:
    return value


#: Options whose text in a URL is JSON.
JSON_OPTIONS: dict[str, Callable[[str, Any], Any]] = {
    "key": _any,
    "keys": _keys,
    "startkey": _any,
    "endkey": _any,
    "partitions": _partitions,
}

_WORD_OPTIONS: dict[str, Callable[[str, Any], Any]] = {
    "startkey_docid": _docid,
    "endkey_docid": _docid,
    "inclusive_end": _switch,
    "descending": _switch,
    "limit": _count,
    "skip": _count,
    "reduce": _switch,
    "group": _switch,
    "group_level": _count,
    "stale": _word(*STALE),
    "update": _word(*UPDATE),
    "at": _tokens,
    "on_error": _word("continue", "stop"),
    "connection_timeout": _milliseconds,
    "include_docs": _switch,
    "update_seq": _switch,
    "full_set": _switch,
    "rev": _word("new"),
    "epoch": _count,
    "merge": _switch,
    "signature": _text,
}

OPTIONS = {**JSON_OPTIONS, **_WORD_OPTIONS}
