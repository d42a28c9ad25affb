"""The receiving side of UPR: from frames to versions, with rollback by key."""
