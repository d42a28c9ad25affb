"""A running node: Twisted, the real clock, sockets, logs and HTTP.

Everything below this package is rules without a world; everything here is the world without rules.
"""
