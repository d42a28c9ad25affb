"""Logins: passwords, SASL mechanisms, and what users may do. Rules only.

Both sides are here: what a node checks and what a client says. Entropy, time and files are
arguments or belong to callers.
"""
