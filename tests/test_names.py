"""A public class name means one thing in the whole package."""

from __future__ import annotations

from tools.code_map import class_names

#: Names that still mean several things. The list may only become shorter.
SEVERAL = """
    Access Account Ahead Answer Asked Barrier Barriers Batch Change Changes ClusterMap
    Common Compaction Compared Connection Connections Control Conversation Counts Cursor
    Damaged Decoder Document Engine Fault Feed Follower Following Group Held Holder InUse
    Index Keeper Lease LeaseRefused Line Link LinkOwner LoginRefused Loop Meta Node
    NodeSession Nodes Opened Options Origin Outcome Pages Part Place Placement Position
    Progress ProtocolError Question ReadAhead Readers Reading Received Refused
    Registration Report Request RolledBack Rounds Row Rules Run Segment Service Serving
    Settled Shape Shown Sink Snapshot Source Standing Statistics Stats StreamState Streams
    Tally TapStream Task TlsFailed Told Tree Trees Unreachable Version View Window Wire
    Wish Written
"""


def test_no_public_class_name_gets_a_second_meaning() -> None:
    double = {name: where for name, where in class_names().items() if len(where) > 1}
    assert {name: double[name] for name in double.keys() - set(SEVERAL.split())} == {}
