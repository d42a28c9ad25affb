"""The ``uprmc`` command: one module for each family of verbs."""
