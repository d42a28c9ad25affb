"""Every command of the binary protocol by its opcode, quiet forms included.

A command is a small function. It gets its session and its request, whose layout has been checked.
It either answers through the session or raises an error of the engine, which the session turns into
an error of the protocol. Quiet forms are the same functions: `BinaryConversation.succeed` and
`miss` know when to send nothing.
"""

from __future__ import annotations

from uprmc.kv.binary_conversation import Handler
from uprmc.kv.change_commands import CHANGE_COMMANDS
from uprmc.kv.compaction_commands import COMPACTION_COMMANDS
from uprmc.kv.connection_commands import CONNECTION_COMMANDS
from uprmc.kv.lease_commands import LEASE_COMMANDS
from uprmc.kv.login_commands import LOGIN_COMMANDS
from uprmc.kv.metadata_commands import METADATA_COMMANDS
from uprmc.kv.node_commands import NODE_COMMANDS
from uprmc.kv.observe_commands import OBSERVE_COMMANDS
from uprmc.kv.read_commands import READ_COMMANDS
from uprmc.kv.replication_commands import REPLICATION_COMMANDS
from uprmc.kv.tap_commands import TAP_COMMANDS
from uprmc.kv.upr_commands import UPR_COMMANDS
from uprmc.kv.vbucket_commands import VBUCKET_COMMANDS
from uprmc.kv.xdcr_commands import XDCR_COMMANDS
from uprmc.protocol.opcodes import QUIET

_LOUD: dict[int, Handler] = {
    **READ_COMMANDS,
    **CHANGE_COMMANDS,
    **OBSERVE_COMMANDS,
    **CONNECTION_COMMANDS,
    **LOGIN_COMMANDS,
    **VBUCKET_COMMANDS,
    **NODE_COMMANDS,
    **METADATA_COMMANDS,
    **COMPACTION_COMMANDS,
    **UPR_COMMANDS,
    **LEASE_COMMANDS,
    **REPLICATION_COMMANDS,
    **TAP_COMMANDS,
    **XDCR_COMMANDS,
}

#: Opcode -> command. SET and GET come here only when the session's short way does not apply.
HANDLERS: dict[int, Handler] = {
    **_LOUD,
    **{quiet: _LOUD[loud] for quiet, loud in QUIET.items() if loud in _LOUD},
}
