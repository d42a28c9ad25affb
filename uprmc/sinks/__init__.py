"""Ready-made sinks: handlers that bring the changes of nodes somewhere else.

Each is a `Handler` for `UprClient`. Those that keep positions with their data have a `state`; the
others need one beside them. ``uprmc mirror`` runs them; see ``docs/client.md``.
"""
