"""Documents, maps in two languages, and queries, for comparisons with the oracle and with peers.

`View` holds one map as JavaScript and as the same in Python. Keys are small on purpose: equal keys
of several documents, and keys of every JSON type, are the rule.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from hypothesis import strategies as st

_TEXT = st.text(st.sampled_from("abAB z0-_"), max_size=3)

#: Whole numbers and halves: every language adds them without an error.
_NUMBER = st.integers(-3, 3) | st.sampled_from([0.5, 1.5, -2.5])

_PLAIN = st.none() | st.booleans() | _NUMBER | _TEXT

KEYS: st.SearchStrategy[Any] = st.recursive(
    _PLAIN,
    lambda part: (
        st.lists(part, max_size=3) | st.dictionaries(st.sampled_from("abB"), part, max_size=2)
    ),
    max_leaves=4,
)

_ARRAY_KEYS = st.lists(st.sampled_from([0, 1, 2, "a", "A", "b", None]), min_size=1, max_size=3)


@st.composite
def documents(draw: st.DrawFn) -> dict[str, Any]:
    """Bodies with a few fields; some lack fields."""
    body: dict[str, Any] = {"n": draw(_NUMBER)}
    if draw(st.booleans()):
        body["key"] = draw(KEYS | _ARRAY_KEYS)
    if draw(st.booleans()):
        body["type"] = draw(st.sampled_from(["user", "order", 7]))
    if draw(st.booleans()):
        body["tags"] = draw(st.lists(st.sampled_from(["a", "b", "C"]), max_size=3))
    if draw(st.booleans()):
        body["place"] = {"city": draw(st.sampled_from(["Ulm", "ulm", "Bonn"]))}
    return body


#: Ids, of which some are prefixes of others.
IDS = st.text(st.sampled_from("abAB01"), min_size=1, max_size=3)

DATA = st.dictionaries(IDS, documents(), max_size=12)


class View(NamedTuple):
    """A map function twice, and its reduce."""

    name: str
    javascript: str
    python: Callable[[Any], list[tuple[Any, Any]]]
    reduce: str | None = None

    @property
    def definition(self) -> dict[str, str]:
        """Return the view's member of a design document."""
        made = {"map": self.javascript}
        return made | {"reduce": self.reduce} if self.reduce else made


def _by_key(doc: Any) -> list[tuple[Any, Any]]:
    return [(doc["key"], doc["n"])] if "key" in doc else []


def _by_tag(doc: Any) -> list[tuple[Any, Any]]:
    return [([tag, len(doc["tags"])], doc["n"]) for tag in doc.get("tags", ())]


_BY_KEY = 'function (doc) { if ("key" in doc) emit(doc.key, doc.n); }'
_BY_TAG = "function (doc) { (doc.tags || []).forEach(t => emit([t, doc.tags.length], doc.n)); }"

VIEWS = (
    View("plain", _BY_KEY, _by_key),
    View("count", _BY_KEY, _by_key, "_count"),
    View("sum", _BY_KEY, _by_key, "_sum"),
    View("stats", _BY_KEY, _by_key, "_stats"),
    View("tags", _BY_TAG, _by_tag, "_sum"),
)


@st.composite
def queries(draw: st.DrawFn, *, reduced: bool) -> dict[str, Any]:
    """Options that do not contradict one another, as values."""
    options: dict[str, Any] = {}
    grouped = False
    if reduced:
        if draw(st.booleans()):
            options["reduce"] = draw(st.booleans())
        if options.get("reduce", True):
            grouped = draw(st.booleans())
            if grouped:
                options["group"] = True
            elif draw(st.booleans()):
                options["group_level"] = draw(st.integers(1, 3))
    keys = KEYS | _ARRAY_KEYS
    way = draw(st.sampled_from(["all", "key", "keys", "range"]))
    if way == "key":
        options["key"] = draw(keys)
    elif way == "keys" and (not reduced or grouped or not options.get("reduce", True)):
        options["keys"] = draw(st.lists(keys, max_size=3))
    if draw(st.booleans()):
        options["descending"] = draw(st.booleans())
    if way == "range":
        _draw_range(draw, keys, options)
    if draw(st.booleans()):
        options["skip"] = draw(st.integers(0, 4))
    if draw(st.booleans()):
        options["limit"] = draw(st.integers(0, 5))
    return options


def _draw_range(draw: st.DrawFn, keys: st.SearchStrategy[Any], options: dict[str, Any]) -> None:
    for end in ("startkey", "endkey"):
        if draw(st.booleans()):
            options[end] = draw(keys)
            if draw(st.booleans()):
                options[f"{end}_docid"] = draw(IDS)
    if draw(st.booleans()):
        options["inclusive_end"] = draw(st.booleans())


def contradicts(options: dict[str, Any], compare: Callable[[Any, Any], int]) -> bool:
    """Return whether the range begins beyond its end, which is refused."""
    if not {"startkey", "endkey"} <= options.keys():
        return False
    sign = -1 if options.get("descending") else 1
    order = sign * compare(options["startkey"], options["endkey"])
    first, last = options.get("startkey_docid"), options.get("endkey_docid")
    if order == 0 and first is not None and last is not None:
        return sign * ((first > last) - (first < last)) > 0
    return order > 0


#: Conditions on the fields that `documents` have.
_TESTS = st.one_of(
    st.just({}),
    st.sampled_from(["user", "order", 7]).map(lambda value: {"type": value}),
    st.booleans().map(lambda there: {"key": {"$exists": there}}),
    st.sampled_from(["Ulm", "ulm", None]).map(lambda value: {"place.city": {"$ne": value}}),
    st.lists(st.sampled_from(["user", 7]), max_size=2).map(lambda them: {"type": {"$in": them}}),
    st.tuples(st.sampled_from(["$gt", "$gte", "$lt", "$lte"]), _NUMBER).map(
        lambda pair: {"n": {pair[0]: pair[1]}}
    ),
    st.tuples(st.sampled_from(["$gt", "$lte"]), KEYS).map(lambda pair: {"key": {pair[0]: pair[1]}}),
)

_PARTS = st.sampled_from(["$.key", "$.n", "$.type", "$.place.city", "$.tags", "x", 1, None])

_TEMPLATES = _PARTS | st.lists(_PARTS, max_size=3) | st.fixed_dictionaries({"m": _PARTS})

#: Declarative maps. `value` is a number, so that every built-in reduce takes it.
DEFINITIONS: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {
        "where": st.tuples(_TESTS, _TESTS).map(lambda pair: {**pair[0], **pair[1]}),
        "emit": st.lists(
            st.fixed_dictionaries({"key": _TEMPLATES, "value": st.sampled_from(["$.n", 1, 2])}),
            min_size=1,
            max_size=2,
        ),
    }
)
