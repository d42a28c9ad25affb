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

It waits for the slower of the two, whichever that is.

$ line b slow
$ set a 0 a1=v
$ set b 2 b1..b4=v*50000
$ barrier p 20
a1=v b1=(50000 bytes) b2=(50000 bytes) b3=(50000 bytes) b4=(50000 bytes) one=v two=v
$ line b open
$ line a slow
$ set a 0 a1..a4=v*50000
$ set b 2 b1..b4=v
$ barrier p 20
a1=(50000 bytes) a2=(50000 bytes) a3=(50000 bytes) a4=(50000 bytes) b1=v b2=v b3=v b4=v one=v two=v
$ line a open

$ line b silent
$ set b 3 three=v
$ barrier p
not reached
$ line b open
$ delete a 0 a1 a2 a3 a4
$ delete b 2 b1 b2 b3 b4
$ until barrier p
one=v three=v two=v
