"""What a node tells about itself: groups of ``stats``, metrics, and panels of its page."""
