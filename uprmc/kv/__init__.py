"""Conversations with memcached clients, binary and text, without a socket."""
