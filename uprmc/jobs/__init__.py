"""Tasks that run in this process, in processes of this machine, or in Spark."""
