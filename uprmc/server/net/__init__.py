"""Connections: how they are accepted, opened, read and written, and who may have one."""
