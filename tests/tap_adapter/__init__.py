"""Tests of the TAP adapter."""
