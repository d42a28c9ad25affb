vBuckets are handed over in order. The history goes on without a branch, and no reader goes back.
Proves: D52

$ node a
$ node b
$ node c
$ set a 0 k1..k3=v
$ uprmc replicate --node b --source a --wait
vBuckets 0-3: following a, 4 streaming, 0 changes behind
$ uprmc replicate --node c --source a --wait
vBuckets 0-3: following a, 4 streaming, 0 changes behind
$ uprmc failover-log 0 --node a
vBucket term vb_uuid begins after seqno
0 1 #1 0
$ uprmc tail --node a,b --vbuckets 0 --start 0 &
$ next 3
0:1 set k1 "v" rev 1, CAS #2
0:2 set k2 "v" rev 1, CAS #3
0:3 set k3 "v" rev 1, CAS #4
$ uprmc takeover --node a --to b --swap
vBuckets 0-3: active at b, a replica at a
$ set a 0 k4=refused
k4: not my vBucket
$ set b 0 k4=v
$ next 1
0:4 set k4 "v" rev 1, CAS #5
$ uprmc failover-log 0 --node b
vBucket term vb_uuid begins after seqno
0 2 #1 0
$ uprmc replicate --node c --source b --wait
vBuckets 0-3: following b, 4 streaming, 0 changes behind
$ uprmc stats replication --node c |grep source_b:rollbacks
source_b:rollbacks 0
$ get-replica c 0 k4
k4=v
$ uprmc takeover --node a --to c
uprmc: a has no active vBuckets: there is nothing to hand over
exit code 1

What was taken over survives kill -9 of both, and what was written since and is on disk.

$ uprmc observe k4 --vbuckets 0 --node b --wait
k4 vBucket 0 persisted CAS #5
$ kill a
$ kill b
$ node b
$ node a
$ uprmc replicate --node a --source b --wait
vBuckets 0-3: following b, 4 streaming, 0 changes behind
$ get b 0 k1 k4
k1=v
k4=v
$ get a 0 k1
k1: not my vBucket
$ uprmc stats replication --node a |grep source_b:rollbacks
source_b:rollbacks 0
