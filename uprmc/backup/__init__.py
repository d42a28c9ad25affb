"""Backups as Parquet files: taken, extended, verified and restored."""
