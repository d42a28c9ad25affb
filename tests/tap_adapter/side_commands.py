"""What is said of TAP clients beside their connections, written down instead of done."""

from __future__ import annotations

from dataclasses import dataclass, field

from uprmc.errors import InvalidArguments


@dataclass
class SideCommands:
    """Base of fakes; nobody is connected but b"known"."""

    said: list[object] = field(default_factory=list)

    def deregister(self, name: bytes) -> None:
        self.said.append(name)

    def change_filter(self, name: bytes, wanted: dict[int, int]) -> None:
        if name != b"known":
            raise InvalidArguments(name)
        self.said.append((name, wanted))

    def reset_chain(self) -> None:
        self.said.append("reset")
