"""The ``uprmc`` command: one module for each verb."""
