"""Writing rows to the nodes: the one implementation behind the sinks, load and restore.

    writer = Writer(options, partition, attempt)
    for batch in batches:
        writer.write(batch)
    report = writer.finish()

A batch is cut into pieces; a piece is packed (`requests`), carried out (`rounds`, `windows`),
judged (`result_classifier`) and held until it is on disk, if that was asked for (`persisting`).
Only then comes the next one, so the order of the rows is the order of the changes of every key.

Every row comes to something: `TaskReport` has the counters, and rows that cannot be written are
errors, never left out in silence.

Note: a writer that raised has done some of its rows, which is not taken back. A task
is repeated as a whole; every mode but insert of what others write too then ends in the same state.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Self

import pyarrow as pa

from uprmc.columnar.connection import Connection
from uprmc.columnar.error_rows import ErrorFile, ErrorRow
from uprmc.columnar.errors import BadRow, TooManyErrors
from uprmc.columnar.nodes import Nodes
from uprmc.columnar.persisting import UnpersistedRows
from uprmc.columnar.report import FIRST_ERRORS_MAX, TaskReport
from uprmc.columnar.requests import PIECE_ROWS, Piece, packed, pieces
from uprmc.columnar.result_classifier import ResultClassifier
from uprmc.columnar.rounds import Rounds
from uprmc.columnar.write_options import WriteOptions

#: With a rate, what is written at a time takes this part of a second.
RATE_STEP_S = 0.1


class Writer:
    """Writes the rows of one task.

    One thread at a time; it connects when there is a row to send.

    Args:
        options: how to write.
        partition: which task this is.
        attempt: which attempt at it, from 0.
        name_row: says of a row's number in the task where it came from, for messages.
        nodes: makes the connections.
        clock: seconds that only grow.
        sleep: waits.
        now: Unix time in seconds.

    Attributes:
        report: what came of the rows so far.
    """

    def __init__(
        self,
        options: WriteOptions,
        partition: int = 0,
        attempt: int = 0,
        name_row: Callable[[int], str] | None = None,
        *,
        nodes: Callable[..., Nodes] = Nodes,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.report = TaskReport(partition=partition, attempt=attempt, dry_run=options.dry_run)
        self._options = options
        self._name_row = name_row
        self._make_nodes = nodes
        self._clock, self._sleep = clock, sleep
        self._began = clock()
        self._now = now
        self._item_limit_bytes: int | None = None
        self._pace = _Pace(options.rate, clock, sleep)
        self._file = (
            ErrorFile(options.errors_path, partition, attempt)
            if options.on_error == "file" and options.errors_path
            else None
        )
        self._nodes: Nodes | None = None
        self._rounds: Rounds | None = None
        self._classifier: ResultClassifier | None = None
        self._unpersisted: UnpersistedRows | None = None

    def write(self, batch: pa.RecordBatch) -> None:
        """Write rows, after all those that were written before.

        Raises:
            BadSchema: columns are missing or have the wrong type; nothing of the batch was written.
            BadRow, TooManyErrors: a row, or one too many, cannot be written.
            Unreachable, NoVBucket, Refused, ...: the nodes do not take it, for too long.
        """
        for part in pieces(batch, self._pace.rows_max):
            self._pace.wait(part.num_rows)
            vbuckets = 0 if self._options.dry_run else self._connected().vbuckets
            limit = self._item_limit_bytes
            piece = packed(self._options, part, self.report.rows, vbuckets, self._now(), limit)
            self.report.rows += part.num_rows
            self.report.skipped += piece.skipped
            self.report.bytes += piece.bytes
            for error in piece.errors:
                self._fail(error)
            if self._options.dry_run:
                self.report.applied += len(piece.frames)
            elif piece.frames:
                self._carry_out(piece)

    def reject(self, row: ErrorRow) -> None:
        """Count a row that was none before it came here; raises as `write` does of a bad row."""
        self.report.rows += 1
        self._fail(row)

    def finish(self) -> TaskReport:
        """Return what came of it, when all of it is done; raises as `write`."""
        if self._unpersisted is not None:
            self._unpersisted.settle()
        self._hang_up()
        if self._file is not None:
            self._file.close()
            self.report.error_file = self._file.path
        if self._rounds is not None:
            self.report.retried = self._rounds.repeated
        self.report.seconds = self._clock() - self._began
        return self.report

    def abort(self) -> None:
        """Give up. What was written stays, and so does the file of error rows."""
        self._hang_up()
        if self._file is not None:
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.abort()

    # --- carrying out ---------------------------------------------------------------------------

    def _connected(self) -> Nodes:
        if self._nodes is None:
            options = self._options
            nodes = self._nodes = self._make_nodes(options.access)
            self._item_limit_bytes = _item_limit(nodes)
            rounds = self._rounds = Rounds(options, nodes, self._clock, self._sleep)
            self._classifier = ResultClassifier(options, rounds, self._fail)
            if options.durability == "persist":
                self._unpersisted = UnpersistedRows(
                    options, nodes, rounds, self._send_again, self._clock, self._sleep
                )
        return self._nodes

    def _hang_up(self) -> None:
        if self._nodes is not None:
            self._nodes.close()

    def _carry_out(self, piece: Piece) -> None:
        assert self._classifier is not None
        piece.outcomes = self._classifier.carry_out(piece, range(len(piece.frames)))
        self.report.applied += len(piece.frames) - len(piece.outcomes)
        for outcome, count in Counter(piece.outcomes.values()).items():
            if outcome != "errors":  # counted as they were found
                setattr(self.report, outcome, getattr(self.report, outcome) + count)
        if self._unpersisted is not None:
            self._unpersisted.hold(piece)

    def _send_again(self, piece: Piece, places: list[int]) -> None:
        """Repeat what a node has lost. The rows were counted; only new errors count."""
        assert self._classifier is not None
        self.report.resent += len(places)
        for place, outcome in self._classifier.carry_out(piece, places).items():
            if outcome == "errors":
                counted = piece.outcomes.get(place, "applied")
                setattr(self.report, counted, getattr(self.report, counted) - 1)
                piece.outcomes[place] = outcome

    def _fail(self, error: ErrorRow) -> None:
        """Count a row that cannot be written, and do with it what the options say."""
        options, report = self._options, self.report
        text = error.text(self._name_row)
        report.errors += 1
        if len(report.first_errors) < FIRST_ERRORS_MAX:
            report.first_errors.append(text)
        if options.on_error == "fail":
            raise BadRow(text)
        if self._file is not None:
            self._file.write(error, self._name_row)
        if options.max_errors is not None and report.errors > options.max_errors:
            raise TooManyErrors(f"more than {options.max_errors} rows failed; the last: {text}")


def _item_limit(nodes: Nodes) -> int | None:
    """Return how long key and value together may be, by the most generous node."""
    limits = [
        nodes.at(place, _settings).get("item_size_max", "")
        for place in sorted(set(nodes.owners.values()))
    ]
    return max((int(each) for each in limits if each.isdigit()), default=None)


def _settings(connection: Connection) -> dict[str, str]:
    return connection.stats("settings")


class _Pace:
    """Keeps a writer to a number of rows per second; time that was not used is not saved up."""

    def __init__(
        self,
        rate: float | None,
        clock: Callable[[], float],
        sleep: Callable[[float], None],
    ) -> None:
        self.rows_max = PIECE_ROWS
        if rate is not None:
            self.rows_max = max(1, min(PIECE_ROWS, int(rate * RATE_STEP_S)))
        self._rate, self._clock, self._sleep = rate, clock, sleep
        self._due_s = 0.0

    def wait(self, rows: int) -> None:
        """Wait until this number of rows may be written."""
        if self._rate is None:
            return
        now = self._clock()
        if self._due_s > now:
            self._sleep(self._due_s - now)
        self._due_s = max(self._due_s, now) + rows / self._rate
