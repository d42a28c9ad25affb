"""What a query may say: every option of a view, read once, with one clear refusal each.

Options come from the URL, where keys are JSON and the rest are words, and from the JSON body of a
POST. Names and rules are CouchDB's and Couchbase's; where both spell an option differently, both
spellings are understood. What is unknown, given twice or contradictory is refused by name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from uprmc.index.collation import Collation, sort_key
from uprmc.index.errors import QueryRefused, bad_request
from uprmc.index.json_text import strict_json
from uprmc.index.model import Stale, Token
from uprmc.index.rows import id_bytes, id_text
from uprmc.units import nearest

__all__ = [
    "ALIASES",
    "JSON_OPTIONS",
    "OPTIONS",
    "STALE",
    "UPDATE",
    "Bound",
    "Query",
    "json_of",
    "partition_of",
    "token_of",
]

# --- option values --------------------------------------------------------------------------------
# Values of a query's options, each read by itself: from the text of a URL, or from a JSON body.


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
    """Return the value of an option of a URL that is JSON; raise `QueryRefused`."""
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
    """Return a version as ``vb:uuid:seqno`` says it; raise `QueryRefused`."""
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


# --- query options --------------------------------------------------------------------------------


class Bound(NamedTuple):
    """One end of a range."""

    key: Any  # the JSON value
    sort_key: bytes  # its place in the order
    docid: bytes | None  # where among the rows of this key; ``None`` = at their outer end


@dataclass(frozen=True, slots=True)
class Query:
    """One question to a view, checked."""

    # Answer for these, one after another, as (value, sort key); ``None`` = for a range.
    keys: tuple[tuple[Any, bytes], ...] | None
    start: Bound | None  # the range in the direction of reading; ``None`` = open
    end: Bound | None
    inclusive_end: bool  # whether the range has the rows of its end; that of a single key has
    descending: bool  # from high to low
    limit: int | None  # most rows; ``None`` = all
    skip: int  # rows that are left out first
    reduce: bool  # rows are reductions
    # Elements of array keys that make a group; ``None`` = the key as a whole, 0 = all rows are one
    # group.
    group_level: int | None
    stale: Stale  # how fresh
    at: tuple[Token, ...]  # versions that the answer must contain
    stop: bool  # an error ends the answer, instead of being listed
    # Longest wait for freshness and for other nodes; ``None`` = as the node is set.
    timeout_s: float | None
    include_docs: bool  # with the documents as they are now
    update_seq: bool  # with the seqnos that the answer stands for
    new: bool  # ask the index that is being built for a changed design
    # VBuckets that each node answers for; ``None`` = those that it has.
    partitions: Mapping[str, frozenset[int]] | None
    epoch: int | None  # of the map from which `partitions` was made
    # The answer is for a merger: reductions are as they are stored, and rows of different `keys`
    # are kept apart by empty lines.
    merge: bool
    signature: str  # of the definition that is expected, as the map says; empty = any
    given: Mapping[str, Any]  # the options by name, as JSON values

    @classmethod
    def parse(
        cls,
        parameters: Iterable[tuple[str, str]],
        body: Any = None,
        *,
        reduces: bool,
        collation: Collation = "unicode",
    ) -> Query:
        """Read the options of a request.

        Args:
            parameters: of the URL, decoded, in their order; what is not UTF-8 as surrogates.
            body: the JSON value of a POST's body; ``None`` = there is none.
            reduces: the view has a reduce function.
            collation: of the design.

        Raises:
            Refused: 400, naming the option.
        """
        given = _given(parameters, body)
        _check_combinations(given, reduces)
        return cls(**_ranges(given, collation), **_the_rest(given, reduces), given=given)


def _given(parameters: Iterable[tuple[str, str]], body: Any) -> dict[str, Any]:
    """Return each option's value by its first spelling."""
    found: dict[str, Any] = {}
    for name, text in parameters:
        option = _known(name, found)
        value = json_of(name, text) if option in JSON_OPTIONS else text
        found[option] = OPTIONS[option](name, value)
    if body is None:
        return found
    if not isinstance(body, dict):
        raise bad_request('the body is a JSON object with options, such as {"keys": ["a", "b"]}')
    for name, value in body.items():
        option = _known(name, found)
        found[option] = OPTIONS[option](name, value)
    return found


def _known(name: str, found: Mapping[str, Any]) -> str:
    option = ALIASES.get(name, name)
    if option not in OPTIONS:
        shown = ascii(name[:60])
        meant = nearest(name[:60], [*OPTIONS, *ALIASES])
        hint = f"; did you mean {meant}?" if meant else ""
        raise bad_request(f"there is no option {shown}{hint}")
    if option in found:
        raise bad_request(f"{option} is given twice")
    return option


# --- together -----------------------------------------------------------------------------------


def _check_combinations(given: Mapping[str, Any], reduces: bool) -> None:
    def forbid(one: str, *others: str) -> None:
        for other in others:
            if one in given and other in given:
                raise bad_request(f"{one} and {other} contradict each other")

    forbid("key", "keys", "startkey", "endkey")
    forbid("keys", "startkey", "endkey", "startkey_docid", "endkey_docid")
    forbid("group", "group_level")
    forbid("stale", "update")
    if "epoch" in given and "partitions" not in given:
        raise bad_request("epoch belongs to partitions, which is not given")
    _check_reduce(given, reduces)


def _check_reduce(given: Mapping[str, Any], reduces: bool) -> None:
    if given.get("reduce") and not reduces:
        raise bad_request("reduce=true: this view has no reduce function")
    if not given.get("reduce", reduces):
        for name in ("group", "group_level"):
            if given.get(name):
                raise bad_request(f"{name}: there is nothing to group without a reduce")
        return
    if given.get("include_docs"):
        raise bad_request("include_docs: a reduced row belongs to no document; say reduce=false")
    if "keys" in given and not given.get("group"):
        raise bad_request("keys: with a reduce they need group=true")


def _ranges(given: Mapping[str, Any], collation: Collation) -> dict[str, Any]:
    keys = None
    if "keys" in given:
        keys = tuple((key, _sort_key("keys", key, collation)) for key in given["keys"])
    descending = given.get("descending", False)
    start = _bound(given, "startkey", collation)
    end = _bound(given, "endkey", collation)
    if start and end:
        _check_order(start, end, descending)
    return {
        "keys": keys,
        "start": start,
        "end": end,
        "inclusive_end": "key" in given or given.get("inclusive_end", True),
        "descending": descending,
    }


def _bound(given: Mapping[str, Any], name: str, collation: Collation) -> Bound | None:
    of = "key" if "key" in given else name
    if of not in given:
        return None
    docid = given.get(f"{name}_docid")
    return Bound(
        given[of],
        _sort_key(of, given[of], collation),
        None if docid is None else id_bytes(docid),
    )


def _sort_key(name: str, value: Any, collation: Collation) -> bytes:
    try:
        return sort_key(value, collation)
    except (RecursionError, ValueError, OverflowError) as error:
        raise bad_request(f"{name} cannot be a key: {str(error)[:200]}") from None


def _check_order(start: Bound, end: Bound, descending: bool) -> None:
    low, high = (end, start) if descending else (start, end)
    beyond = low.sort_key > high.sort_key
    if low.sort_key == high.sort_key and low.docid is not None and high.docid is not None:
        beyond = low.docid > high.docid
    if beyond:
        advice = "exchange them" if descending else "exchange them or say descending=true"
        raise bad_request(
            f"no row can lie in this range: startkey is beyond endkey in the order of reading; "
            f"{advice}"
        )


def _the_rest(given: Mapping[str, Any], reduces: bool) -> dict[str, Any]:
    timeout_ms = given.get("connection_timeout")
    partitions = given.get("partitions")
    return {
        "limit": given.get("limit"),
        "skip": given.get("skip", 0),
        "reduce": given.get("reduce", reduces),
        "group_level": None if given.get("group") else given.get("group_level", 0),
        "stale": _stale(given),
        "at": tuple(token_of("at", text) for text in given.get("at", ())),
        "stop": given.get("on_error") == "stop",
        "timeout_s": None if timeout_ms is None else timeout_ms / 1_000,
        "include_docs": given.get("include_docs", False),
        "update_seq": given.get("update_seq", False),
        "new": "rev" in given,
        "partitions": partitions and {node: frozenset(them) for node, them in partitions.items()},
        "epoch": given.get("epoch"),
        "merge": given.get("merge", False),
        "signature": given.get("signature", ""),
    }


def _stale(given: Mapping[str, Any]) -> Stale:
    if "update" in given:
        return UPDATE[given["update"]]
    return STALE[given.get("stale", "update_after")]


def partition_of(query: Query, addresses: Iterable[str]) -> frozenset[int] | None:
    """Return the vBuckets that a request wants of the node that listens at these addresses.

    A list for a single node is meant for the one that received it, whatever name it was reached by.

    Raises:
        Refused: 400; the request names only other nodes.
    """
    if query.partitions is None:
        return None
    for address in addresses:
        if address in query.partitions:
            return query.partitions[address]
    if len(query.partitions) == 1:
        return next(iter(query.partitions.values()))
    raise QueryRefused(
        400, "bad_request", "partitions does not name this node", addresses=[*addresses]
    )
