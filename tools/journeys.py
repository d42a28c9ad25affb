"""How far data travels through the code of the package `uprmc`.

Each journey starts real nodes in a temporary directory on free ports, lets one thing happen, and
records what runs of the package: calls, different functions, files, stays (runs of consecutive
calls in one file) and returns (stays in a file that was left before).

- A turn is what one outermost call into the package does. The functions in which a thread waits for
  its next turn are those that are on its stack whenever one looks; they do not count.
- Turns that also run in an idle window, call for call, are ticks and do not count. `query` does
  what ticks do, too, and is over in milliseconds: there all turns count.
- `change` and `link` begin with a SET; of turns that a mere SET has, too, only what is more counts.
- Turns of several threads stand one after another, as they began. A generator or coroutine counts
  when it is resumed; lambdas, comprehensions and functions in functions do not count.
- It happens eight times, each in another part of a second; the time with the fewest calls is
  shown. So what looks once a second whether something has happened does not count.
- Compiled code shows no calls: the core runs interpreted, unless `--installed` is given.
- Nodes have 4 vBuckets. They do not rest between commits, and watermarks, which are due once a
  second however much has happened, are not reported.
"""

import argparse
import http.client
import itertools
import json
import os
import runpy
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from difflib import SequenceMatcher
from functools import partial

LONGEST_S, PATIENCE_S = 50, 20  # for a journey; for one thing that ought to happen
SETTLE_S, IDLE_S = 1.5, 2.2  # what runs once a second has run once, and twice
QUIET_S = 0.3  # it is over when nothing but ticks has run for so long
TRIES, STEP_S = 8, 0.63  # spread evenly over a second, and over a tenth of it
VBUCKETS = 4

UPRMC = [sys.executable, "-P", "-m", "uprmc"]
SETTINGS = "--set flush.rest_factor=0 --set upr.watermarks_interval_s=3600"
COUNTS = ("calls", "functions", "files", "stays", "returns")


# --- recording -----------------------------------------------------------------------------------


class Turn:
    """What one outermost call into the package did; calls are (file, function)."""

    def __init__(self):
        self.began, self.calls, self.over = time.monotonic(), [], False


class Recorder:
    """Records the turns of this process, in this thread and those that are started later."""

    def __init__(self):
        import uprmc

        self._package = os.path.join(os.path.dirname(uprmc.__file__), "")
        self._turns, self._loops, self._thread = None, set(), threading.local()
        threading.setprofile(self._hook)
        sys.setprofile(self._hook)

    def _hook(self, frame, event, _):
        turns, code, here = self._turns, frame.f_code, self._thread
        if turns is None or not code.co_filename.startswith(self._package):
            return
        if getattr(here, "turns", None) is not turns:  # what is under way began before
            here.turns, here.outermost = turns, None
        if event == "return" and frame is here.outermost:
            here.outermost, here.turn.over = None, True
        elif event == "call" and code not in self._loops:
            if here.outermost is None:
                here.outermost, here.turn = frame, Turn()
                turns.append(here.turn)
            if "<" not in code.co_qualname:
                file = code.co_filename.removeprefix(self._package)
                here.turn.calls.append((file, code.co_qualname))

    def find_loops(self):
        """See in which functions threads wait; call it when nothing happens."""
        seen = Counter()
        for _ in range(10):
            time.sleep(0.02)
            tops = sys._current_frames().values()
            seen.update({frame.f_code for top in tops for frame, _ in traceback.walk_stack(top)})
        self._loops = {code for code, times in seen.items() if times > 5}

    def record(self, event, seconds):
        """Return all turns of an event and of some time after it."""
        turns = self._turns = []
        event()
        time.sleep(seconds)
        self._turns = None
        return turns

    def record_unusual(self, event, ticks):
        """Return all turns until an event says that it was over, or those but ticks until quiet."""
        recorded = self._turns = []
        over_at = event()
        turns, changed = [], time.monotonic()
        while time.monotonic() < changed + QUIET_S:
            time.sleep(QUIET_S / 10)
            before = len(turns)
            if over_at is not None:
                turns = [turn for turn in recorded if turn.began <= over_at]
            else:
                turns = [turn for turn in recorded if tuple(turn.calls) not in ticks]
            if len(turns) > before or not all(turn.over for turn in turns):
                changed = time.monotonic()
        self._turns = None
        return turns


def beyond(plain, calls):
    """Return the calls of a turn that the most similar plain one with the same start lacks."""
    rests = [calls]
    for other in (turn.calls for turn in plain if turn.calls[:1] == calls[:1]):
        steps = SequenceMatcher(None, other, calls, autojunk=False).get_opcodes()
        rests.append([call for tag, _, _, i, j in steps if tag != "equal" for call in calls[i:j]])
    return min(rests, key=len)


# --- nodes and peers -----------------------------------------------------------------------------


def until(attempt, what):
    """Return what an attempt gives, as soon as that is something."""
    ends = time.monotonic() + PATIENCE_S
    while time.monotonic() < ends:
        with suppress(ConnectionRefusedError):
            if found := attempt():
                return found
        time.sleep(0.05)
    raise TimeoutError(what)


class Places:
    """Free addresses and directories for a node or an index."""

    def __init__(self, directory):
        for name in ("memcached", "upr", "views"):
            with socket.create_server(("127.0.0.1", 0)) as found:
                setattr(self, name, f"127.0.0.1:{found.getsockname()[1]}")
        self.data = tempfile.mkdtemp(dir=directory)

    def node(self):
        """Return the arguments that start a node."""
        listeners = f"--memcached {self.memcached} --upr {self.upr} --http off --views off"
        return f"serve {listeners} --data {self.data} --vbuckets {VBUCKETS} {SETTINGS}"


class Peer:
    """A connection that speaks memcached's binary protocol, once somebody listens."""

    _head = struct.Struct(">BBHBBHIIQ")

    def __init__(self, place):
        connect = partial(socket.create_connection, place.split(":"), PATIENCE_S)
        self._socket = until(connect, f"nobody listens at {place}")
        self._input, self._numbers = self._socket.makefile("rb"), itertools.count(100_000)

    def send(self, opcode, key=b"", extras=b"", value=b"", vbucket=0):
        """Send a request."""
        sizes = len(key), len(extras), 0, vbucket, len(extras + key + value)
        head = self._head.pack(0x80, opcode, *sizes, 0, 0)
        self._socket.sendall(head + extras + key + value)

    def receive(self):
        """Return the body of the next frame."""
        return self._input.read(self._head.unpack(self._input.read(self._head.size))[-3])

    def set(self, key=b"key"):
        """Store another document of the same size; return when it is accepted."""
        self.value = b'{"n":%d}' % next(self._numbers)
        self.send(0x01, key, bytes(8), self.value)
        if refusal := self.receive():
            raise ValueError(f"a SET is refused: {refusal.decode()}")

    def has(self, value, opcode):
        """Tell whether this is the document there, in whichever vBucket."""
        for vbucket in range(VBUCKETS):
            self.send(opcode, b"key", vbucket=vbucket)
        bodies = [self.receive() for _ in range(VBUCKETS)]
        return any(body.endswith(value) for body in bodies)


# --- journeys ------------------------------------------------------------------------------------
# `own` is what is measured, `other` a node beside it. A journey yields the arguments of the `uprmc`
# that is measured, then what happens. The last thing that it yields is measured; what it yields
# before that is the same without the journey.


def set_(own, other):
    """a binary SET, from its socket to its commit"""
    yield own.node()
    yield Peer(own.memcached).set


def change(own, other):
    """a change, from the engine to the socket of a live UPR consumer"""
    yield own.node()
    writer, consumer = Peer(own.memcached), Peer(own.upr)
    yield writer.set
    consumer.send(0x50, b"consumer", struct.pack(">II", 0, 1))
    for vbucket in range(VBUCKETS):
        everything = struct.pack(">IIQQQQQ", 0, 0, 0, 2**64 - 1, 0, 0, 0)
        consumer.send(0x53, extras=everything, vbucket=vbucket)

    def set_and_receive():
        writer.set()
        while not consumer.receive().endswith(writer.value):
            pass

    yield set_and_receive


def replica(own, other):
    """a stream's change, from a replica's socket to its commit and acknowledgement"""
    yield f"{own.node()} --source {other.upr}"
    writer, there = Peer(other.memcached), Peer(own.memcached)
    writer.set()
    until(lambda: there.has(writer.value, 0x83), "the replica does not follow")
    yield writer.set


def client(own, other):
    """a change, from a blocking UprClient's socket to handler, saved position, acknowledgement"""
    yield ""
    from uprmc.client import Handler, UprClient

    class Noting(Handler):
        def mutation(self, change):
            handled.set()

    handled, state, writer = threading.Event(), f"{own.data}/state", Peer(other.memcached)
    # No reports once a second, and no question after ten whether it has waited long enough.
    UprClient(other.upr, Noting(), state=state, register=False, patience_s=None).start()
    writer.set()
    until(handled.is_set, "the client's handler is not called")
    yield writer.set


def query(own, other):
    """a stale=false query of two rows, from HTTP request to answer, in the index process"""
    yield f"index serve --views {own.views} --source {other.upr} --data {own.data}"
    design, rows = '{"views":{"view":{"map":{"emit":[{"key":"$.n"}]}}}}', "/_view/view?stale=false"
    writer = Peer(other.memcached)
    for key in (b"one", b"two"):
        writer.set(key)

    def ask(method, path, body=None):
        connection = http.client.HTTPConnection(own.views, timeout=PATIENCE_S)
        connection.request(method, "/default/_design/design" + path, body)
        return connection.getresponse().read(), time.monotonic()

    until(lambda: ask("PUT", "", design), "the index does not listen")
    until(lambda: b'"total_rows":2' in ask("GET", rows)[0], "the index does not have both rows")
    yield lambda: ask("GET", rows)[1]


def link(own, other):
    """a document, from the XDCR stream to the frame sent and the answer settled"""
    yield own.node()
    writer, there = Peer(own.memcached), Peer(other.memcached)
    yield writer.set
    spec = {"name": "link", "to": other.upr}
    Peer(own.upr).send(0xD5, b"create", value=json.dumps(spec).encode())
    writer.set()
    until(lambda: there.has(writer.value, 0x00), "nothing arrives at the link's target")
    yield writer.set


JOURNEYS = {each.__name__.strip("_"): each for each in (set_, change, replica, client, query, link)}


# --- measuring -----------------------------------------------------------------------------------


def observe(recorder, journey):
    """Return the calls of the last thing that happens in a journey."""
    warm = []
    for event in journey:
        recorder.record(event, SETTLE_S)
        recorder.find_loops()
        plain, warm = warm, [turn for _ in range(2) for turn in recorder.record(event, SETTLE_S)]
    ticks = {tuple(turn.calls) for turn in recorder.record(lambda: None, IDLE_S)}
    began, found = time.monotonic(), []
    for number in range(TRIES):
        time.sleep((began + number * STEP_S - time.monotonic()) % 1)
        turns = recorder.record_unusual(event, ticks)
        found.append([call for turn in turns for call in beyond(plain, turn.calls)])
    return min(found, key=len)


def measure_here(name, directory):
    """Measure a journey in this process; print its calls, or why there are none, and exit."""
    own, other = Places(directory), Places(directory)
    null = subprocess.DEVNULL
    beside = subprocess.Popen([*UPRMC, *other.node().split()], stdout=null, stderr=null)

    def end(result):
        beside.kill()
        beside.wait()
        print("\n" + json.dumps(result), end="", flush=True)
        os._exit(0)

    def drive():
        try:
            end(observe(recorder, journey) or "nothing runs")
        except Exception as error:
            end(f"{type(error).__name__}: {error}")

    threading.Timer(LONGEST_S, end, ["it takes too long"]).start()
    recorder, journey = Recorder(), JOURNEYS[name](own, other)
    arguments, driver = next(journey).split(), threading.Thread(target=drive)
    driver.start()
    try:
        if arguments:
            sys.argv = ["uprmc", *arguments]
            runpy.run_module("uprmc", run_name="__main__", alter_sys=True)
        driver.join()
    finally:
        end("what is measured has ended")


def measure(name):
    """Return name and calls of a journey, measured in another process, or why there are none."""
    with tempfile.TemporaryDirectory(prefix="journeys-") as directory:
        command = [sys.executable, "-P", __file__, "--here", name, directory]
        done = subprocess.run(command, capture_output=True, text=True)
    result = json.loads(done.stdout.rpartition("\n")[2] or '"it has died"')
    last_words = done.stderr.strip().rpartition("\n")[2]
    return name, f"{result}: {last_words}" if isinstance(result, str) else result


def figures(calls):
    """Return the counts of a journey, and its route: files, each with the functions called."""
    stays = itertools.groupby(calls, key=lambda call: call[0])
    route = [(file, [function for _, function in stay]) for file, stay in stays]
    files, functions = {file for file, _ in calls}, {tuple(call) for call in calls}
    counts = len(calls), len(functions), len(files), len(route), len(route) - len(files)
    return dict(zip(COUNTS, counts, strict=True)), route


def print_route(route):
    """Print the files in order, with a mark at those that were left before."""
    left = set()
    for file, functions in route:
        print("<" if file in left else " ", f"{file:30}", ", ".join(functions))
        left.add(file)


def measure_all(names, installed=False):
    """Return the version and the results of journeys; if it does not run, why not and nothing."""
    for variable in [each for each in os.environ if each.startswith("UPRMC_")]:
        del os.environ[variable]
    if not installed:
        os.environ["UPRMC_CORE"] = "interpreted"
    version = subprocess.run([*UPRMC, "--version"], capture_output=True, text=True)
    if version.returncode:
        return version.stderr.strip(), {}
    with ThreadPoolExecutor(len(JOURNEYS)) as pool:
        return version.stdout.strip(), dict(pool.map(measure, names))


def rows():
    """Measure all journeys; yield rows of text: name, counts, what it is or why there are none."""
    version, results = measure_all(JOURNEYS)
    if not results:
        raise OSError(version)
    for name, result in results.items():
        if isinstance(result, str):
            yield [name, *["-"] * len(COUNTS), f"not measured: {result}"]
        else:
            yield [name, *map(str, figures(result)[0].values()), JOURNEYS[name].__doc__]


def main():
    """Measure the journeys and print what was found; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--route", choices=JOURNEYS, help="only this journey, with its route")
    parser.add_argument("--json", action="store_true", help="print JSON, with all routes")
    parser.add_argument("--installed", action="store_true", help="leave the core as installed")
    parser.add_argument("--here", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        return measure_here(*options.here)
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, lambda *_: sys.exit(1))  # when all has been cleared away
    version, results = measure_all(
        [options.route] if options.route else JOURNEYS, options.installed
    )
    if not results:
        return version
    failed = {name: result for name, result in results.items() if isinstance(result, str)}
    found = {name: figures(results[name]) for name in results if name not in failed}
    if options.json:
        told = {name: {**counts, "route": route} for name, (counts, route) in found.items()}
        print(json.dumps({"version": version, "journeys": told}))
    else:
        print(f"{version}\n\n{'journey':9}", *(f"{name:>9}" for name in COUNTS))
        for name, (counts, route) in found.items():
            print(f"{name:9}", *(f"{count:9}" for count in counts.values()), JOURNEYS[name].__doc__)
            if options.route:
                print_route(route)
    for name, why in failed.items():
        print(f"{name} cannot be measured: {why}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
