A node dies with changes that its replica never got. The replica is promoted. When the old active
comes back it undoes just these changes; all others stay where they are.
Proves: D50 P17

$ node a
$ node b
$ set a 0 k1..k4=v kept=v
$ uprmc replicate --node b --source a --wait
vBuckets 0-3: following a, 4 streaming, 0 changes behind
$ uprmc replicate --node b --stop
all vBuckets: no longer following a source
$ set a 0 k1=lost only-a=lost
$ delete a 0 k2
$ uprmc observe k2 --vbuckets 0 --node a --wait
k2 vBucket 0 not found CAS 0
$ kill a
$ uprmc failover --node b
vBuckets 0-3: active at b
$ set b 0 k3=new
$ uprmc failover-log 0 --node b
vBucket term vb_uuid begins after seqno
0 2 #1 5
0 #2 0

A client that can reach only the old active is served by it: nothing has told it yet. It does not
give up changes unless it is ordered to.

$ node a
$ get a 0 k1 only-a
k1=lost
only-a=lost
$ uprmc replicate --node a --source b --wait
uprmc: a: vBucket 0: active here, with changes: say DEMOTE (--demote) to give them up for the source's (0004)
exit code 1
$ uprmc replicate --node a --source b --wait --demote
vBuckets 0-3: following b, 4 streaming, 0 changes behind
$ uprmc stats replication --node a |grep rollbacks
rollbacks 1
source_b:rollbacks 1
$ uprmc failover-log 0 --node a
vBucket term vb_uuid begins after seqno
0 2 #1 5
0 #2 0
$ uprmc tail --node a --vbuckets 0 --start 0 --until-now
0:1 set k1 "v" rev 1, CAS #3
0:2 set k2 "v" rev 1, CAS #4
0:4 set k4 "v" rev 1, CAS #5
0:5 set kept "v" rev 1, CAS #6
0:6 set k3 "new" rev 2, CAS #7

Handed over in order, it is active again, and nothing new begins in the failover log.

$ uprmc takeover --node b --to a
vBuckets 0-3: active at a, dead at b
$ get a 0 k1 k2 k3 kept only-a
k1=v
k2=v
k3=new
kept=v
only-a: not found
$ get b 0 k1
k1: not my vBucket
$ uprmc failover-log 0 --node a
vBucket term vb_uuid begins after seqno
0 3 #1 5
0 #2 0
