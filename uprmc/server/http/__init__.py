"""Pages: health, status and metrics, and answers that have no end."""
