Verbs that are given vBuckets leave the others alone.

$ node a
$ node b
$ set a 0 k=v
$ set a 2 k=v
$ uprmc replicate --node b --source a --vbuckets 0-2 --wait
vBuckets 0-2: following a, 3 streaming, 0 changes behind
$ until uprmc vbucket list --node b
vBucket state term vb_uuid high seqno persisted items
0 replica 1 #1 1 1 1
1 replica 1 #2 0 0 0
2 replica 1 #3 1 1 1
3 active 1 #4 0 0 0
$ uprmc replicate --node b --stop --vbuckets 1
vBucket 1: no longer following a source
$ uprmc failover --node b --vbuckets 2
vBucket 2: active at b
$ set b 2 k=new
$ uprmc stats replication --node b |grep vbuckets
vbuckets 1
source_a:vbuckets 1

A takeover moves what is active at the source, and overwrites no changes at the target.

$ uprmc takeover --node a --to b --vbuckets 2-3
uprmc: b: vBucket 2: active here, with changes: there is nothing to take over (0004); nothing has changed, they are active at a
exit code 1
$ uprmc takeover --node b --to a --vbuckets 0
uprmc: vBucket 0 not active at b: nothing to hand over
exit code 1
$ uprmc takeover --node a --to b --vbuckets 0,3
vBuckets 0,3: active at b, dead at a
$ set a 0 k=late
k: not my vBucket
$ set b 0 k=new
$ set a 1 k=new

Without vBuckets a failover promotes all that are not active, pending ones too.

$ uprmc vbucket set 1 pending --node b
vBucket 1: pending
$ uprmc failover --node b
vBucket 1: active at b
