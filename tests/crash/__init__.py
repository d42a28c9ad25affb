"""Real processes, killed for real."""
