"""Bytes and tables copied from the reference by hand: what the code under test must agree with."""
