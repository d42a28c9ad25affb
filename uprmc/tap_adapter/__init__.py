"""Where legacy TAP replicas and masters will meet UPR streams; nothing speaks TAP yet."""
