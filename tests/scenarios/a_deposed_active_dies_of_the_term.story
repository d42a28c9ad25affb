The old active comes back and nobody tells it. As soon as a replica of the promoted node asks it
for a stream, it learns of the higher term and stops serving, and it stays so after a restart.
Proves: D54 P17

$ node a
$ node b
$ node c
$ set a 0 k1..k3=v
$ uprmc observe k3 --vbuckets 0 --node a --wait
k3 vBucket 0 persisted CAS #1
$ uprmc replicate --node b --source a --vbuckets 0 --wait
vBucket 0: following a, 1 streaming, 0 changes behind
$ kill a
$ uprmc failover --node b
vBucket 0: active at b
$ set b 0 k1=new
$ uprmc replicate --node c --source b --vbuckets 0 --wait
vBucket 0: following b, 1 streaming, 0 changes behind
$ node a
$ uprmc failover-log 0 --node a
vBucket term vb_uuid begins after seqno
0 1 #2 3
0 #3 0
$ uprmc failover-log 0 --node c
vBucket term vb_uuid begins after seqno
0 2 #4 3
0 #3 0
$ get a 0 k1
k1=v
$ uprmc replicate --node c --source a --vbuckets 0
uprmc: a does not send data yet: the source refuses: Not my vbucket (0007) (the node keeps trying)
vBucket 0: following a, 0 streaming, 0 changes behind
$ until uprmc vbucket list --node a --state dead
vBucket state term vb_uuid high seqno persisted items
0 dead 1 #2 3 3 3
$ uprmc stats uprmc --node a |grep vbuckets_deposed
vbuckets_deposed 1
$ get a 0 k1
k1: not my vBucket

What the replica has from the new active is not undone for the old one.

$ uprmc tail --node c --vbuckets 0 --start 0 --until-now
0:2 set k2 "v" rev 1, CAS #5
0:3 set k3 "v" rev 1, CAS #1
0:4 set k1 "new" rev 2, CAS #6

$ stop a
$ node a
$ uprmc vbucket list --node a --state dead
vBucket state term vb_uuid high seqno persisted items
0 dead 1 #2 3 3 3
$ uprmc replicate --node a --source b --vbuckets 0 --wait
vBucket 0: following b, 1 streaming, 0 changes behind
$ uprmc failover-log 0 --node a
vBucket term vb_uuid begins after seqno
0 2 #4 3
0 #3 0
