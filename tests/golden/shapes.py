"""Request shapes as the references' tables give them: opcode, extras, key, value.

Notation of the memcached reference, section 2.3: ``0`` none allowed, ``1+`` required, ``any``
optional; several extras lengths are joined by ``|``. The last four rows: UPR reference, section 6.
"""

from __future__ import annotations

SHAPES = """
00 0 1+ 0
01 8 1+ any
02 8 1+ any
03 8 1+ any
04 0 1+ 0
05 20 1+ 0
06 20 1+ 0
07 0 0 0
08 0|4 0 0
09 0 1+ 0
0a 0 0 0
0b 0 0 0
0c 0 1+ 0
0d 0 1+ 0
0e 0 1+ any
0f 0 1+ any
10 0 any 0
11 8 1+ any
12 8 1+ any
13 8 1+ any
14 0 1+ 0
15 20 1+ 0
16 20 1+ 0
17 0 0 0
18 0|4 0 0
19 0 1+ any
1a 0 1+ any
1b 4 0 0
1c 4 1+ 0
1d 4 1+ 0
1e 4 1+ 0
1f 0 any any
20 0 0 0
21 0 1+ any
22 0 1+ any
23 4 1+ 0
24 4 1+ 0
91 0 0 1+
92 0 0 1+
94 0|4 1+ 0
95 0 1+ 0
"""

ROWS = [line.split() for line in SHAPES.split("\n") if line]
