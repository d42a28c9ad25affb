"""UPR: ordered streams of changes, one peer's conversation at a time, without a socket."""
