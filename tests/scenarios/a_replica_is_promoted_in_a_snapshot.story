A replica has a complete snapshot of 3 documents and a part of the next one when its source is lost.
Its branch of history begins after the complete one: who is ahead of that has to go back, and who is
not goes on.
Proves: D53 P06 P17

$ node a
$ node b
$ set a 0 k1..k3=v
$ uprmc replicate --node b --source a --vbuckets 0 --wait
vBucket 0: following a, 1 streaming, 0 changes behind
$ uprmc failover-log 0 --node b
vBucket term vb_uuid begins after seqno
0 1 #1 0
$ line a refuse
$ set a 0 k4..k8=v*20000
$ line a pass 60000
$ line a open
$ until uprmc stats vbucket-seqno --node b |grep vb_0:abs
vb_0:abs_high_seqno 5
$ kill a
$ uprmc failover --node b --vbuckets 0
vBucket 0: active at b
$ uprmc failover-log 0 --node b
vBucket term vb_uuid begins after seqno
0 2 #2 3
0 #1 0
$ uprmc tail --node b --vbuckets 0 --start 4 --uuid #1 --until-now
uprmc: vBucket 0: the node cannot continue from seqno 4, its history agrees only up to 3: discard later lines and use --start 3, or use --on-rollback rewind
exit code 1
$ uprmc tail --node b --vbuckets 0 --start 3 --uuid #1 --until-now --keys-only
0:4 set k4 rev 1, CAS #3
0:5 set k5 rev 1, CAS #4
