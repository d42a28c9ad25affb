"""Programs that we did not write, talking to a real server process.

Each script says in its docstring what it proves. None of them imports `uprmc`: what they know of
the server is its command line and its wire protocols.
"""
