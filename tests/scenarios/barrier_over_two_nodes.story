Half of the vBuckets are at each of two nodes. A program copies both. Its barrier is reached when
it has everything that either node had acknowledged before, and not while a node is silent.
Proves: D16

$ node a
$ node b
$ uprmc vbucket set 2-3 dead --node a
vBuckets 2-3: dead
$ uprmc vbucket set 0-1 dead --node b
vBuckets 0-1: dead
$ copy p a,b
$ set a 0 one=v
$ set b 2 two=v
$ until barrier p
one=v two=v
$ line b silent
$ set a 0 three=v
$ set b 2 four=v
$ barrier p
not reached
$ line b open
$ until barrier p
four=v one=v three=v two=v
$ set b 3 five=v
$ until barrier p
five=v four=v one=v three=v two=v
