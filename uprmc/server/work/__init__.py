"""What a node does beside its connections: turns, disk, ticks, links, the index's process."""
