from tests.bulk.nodes import fresh_node, node, servers

__all__ = ["fresh_node", "node", "servers"]
