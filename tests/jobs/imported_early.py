"""A module that nothing but an early start of the processes imports."""
