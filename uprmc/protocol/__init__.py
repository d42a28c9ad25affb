"""Bytes to messages and back: no state beyond a half-read frame, no engine.

construct declares every layout of the binary protocol once; where one is hot, a `struct.Struct` is
derived from that declaration (`derive`). The text protocol is a library of pure functions (`text`).
"""
