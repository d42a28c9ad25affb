"""Benchmarks: ratios against a real peer on the same machine in the same run. Never tests."""
