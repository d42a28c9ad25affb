"""A public class name means one thing in the whole package."""

from __future__ import annotations

from tools.code_map import class_names

#: Names that still mean several things. The list may only become shorter.
SEVERAL = """
    Access Account Ahead Answer Asked Barrier Barriers Batch Change Changes ClusterMap
    Common Compaction Compared Control Conversation Counts Cursor Damaged Decoder Document
    Engine Fault Feed Follower Following Held Holder InUse Keeper Lease LeaseRefused Line
    Link LinkOwner LoginRefused Loop Meta Node NodeSession Nodes Opened Options Origin
    Outcome Pages Part Place Position ProtocolError Question ReadAhead Readers Reading
    Received Refused Registration Report Request RolledBack Rounds Row Rules Run Segment
    Serving Settled Shape Shown Sink Source Standing Statistics Stats StreamState Streams
    Tally TapStream Task TlsFailed Told Trees Unreachable Version View Window Wire Wish
    Written
"""


def test_no_public_class_name_gets_a_second_meaning() -> None:
    double = {name: where for name, where in class_names().items() if len(where) > 1}
    assert {name: double[name] for name in double.keys() - set(SEVERAL.split())} == {}
