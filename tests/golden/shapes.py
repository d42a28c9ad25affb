"""Request shapes as the references' tables give them: opcode, extras, key, value.

Notation of the memcached reference, section 2.3: ``0`` none allowed, ``1+`` required, ``any``
optional; several extras lengths are joined by ``|``. From 3d on: UPR reference, sections 2, 6 and 7
(silent about f4 and f5, which are the original server's, 89, whose key may be empty there, and what
is ours: d6 to d9 and e4 to e7); 97 to 9f, aa and b0: TAP reference, sections 7 and 12. Extended
metadata counts as value: a8 and a9 may have no other.
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
3d 0|1|4 0 any
3e 0 any 0
3f 0 0 any
48 0|4|8 0 0
50 8 1+ any
51 4 0 0
52 0 0 0
53 40|48 0 any
54 0 0 0
55 4 0 0
56 1|20 0 any
57 31 1+ any
58 18|21 1+ any
59 18|20 1+ any
5a 0 0 0
5b 1 0 0
5c 0 0 0
5d 4 0 0
5e 0 1+ 1+
61 8 0 0
80 0 0 0
81 0 0 0
82 4 1+ 1+
83 0 1+ 0
89 0 any 0
91 0 0 1+
92 0 0 1+
93 0 1+ 0
94 0|4 1+ 0
95 0 1+ 0
96 0 0 0
97 0 0 0
9e 0 1+ 0
9f 0 0 0
a0 0|1 1+ 0
a1 0|1 1+ 0
a2 24|26|28|30 1+ any
a3 24|26|28|30 1+ any
a4 24|26|28|30 1+ any
a5 24|26|28|30 1+ any
a8 24|26|28|30 1+ any
a9 24|26|28|30 1+ any
aa 0 0 0
ad 0 0 0
ae 0 0 0
b0 0 1+ any
b2 12 1+ any
b3 24 0 0
b4 0 0 1+
b5 0 0 0
b6 0 0 0
b7 8 0 0
b8 0|4 1+ 0
d6 16 0 0
d7 4 any any
d8 0 1+ 1+
d9 0 0 1+
d5 0 1+ any
de 4 0 1+
df 8 0 1+
e4 4|8 any any
e5 12 0 0
db 0 0 1+
dc 20 0 0
e6 8 0 0
e7 8 1+ 0
e8 0 1+ 0
e9 8 1+ 0
ea 20 0 0
eb 12 0 0
ec 12 0 0
ed 16|24 1+ any
dd 8 1+ 1+
ee 0 any 0
ef 12 0 any
f4 8 0 0
f5 0 0 0
fe 0 0 1+
"""

ROWS = [line.split() for line in SHAPES.split("\n") if line]
