"""Which nodes this node follows: lines that are dialled, hand-overs, failovers."""
