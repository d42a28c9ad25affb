"""Links to other clusters: changes of this node's active vBuckets are sent to a target."""
