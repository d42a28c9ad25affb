"""The producer's side of UPR: streams of this node's changes."""
