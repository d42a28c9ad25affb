A node speaks no TAP. Through an adapter a legacy replica follows it all the same. The node crashes
and forgets what was not on its disk: the replica has to forget it, too.
Proves: D56

$ node a --set tap.enabled=no
$ node b
$ uprmc vbucket set 0-3 replica --node b
vBuckets 0-3: replica
$ set a 0 k1..k3=v
$ uprmc observe k3 --vbuckets 0 --node a --wait
k3 vBucket 0 persisted CAS #1
$ disk a rests
$ adapter t a
$ pipe p t b 0-3
$ until get-replica b 0 k1 k2 k3
k1=v
k2=v
k3=v
$ set a 0 k1=lost k4=lost
$ delete a 0 k2
$ until get-replica b 0 k1 k2 k3 k4
k1=lost
k2: not found
k3=v
k4=lost
$ kill a
$ node a
$ until get-replica b 0 k1 k2 k3 k4
k1=v
k2=v
k3=v
k4: not found

The adapter crashes, too. It goes on where it was.

$ kill t
$ set a 0 k5=v
$ adapter t a
$ until get-replica b 0 k5
k5=v
