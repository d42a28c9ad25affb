"""uprmc: a durable memcached-compatible server that replicates over UPR.

Start reading at ``docs/architecture.md``; the layers are, from the bottom up, the vocabulary
(`model`, `errors`, `ports`, `config`), the codec and the store (`protocol`, `storage`), the rules
of one node (`engine`), the conversations (`kv`) and the running node (`server`, `cli`).
"""

__version__ = "0.1.0"

#: The memcached whose protocol and texts we answer with. Clients parse it and turn features on or
#: off by it (libmemcached refuses a major version of 0), so it is what ``version`` says.
MEMCACHED_VERSION = "1.6.18"
