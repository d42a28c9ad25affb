The line of a replica stops in the middle of a snapshot of 100 documents, and the replica crashes.
It asks from where it was and gets only the rest. Afterwards its source crashes, too, and loses
nothing that it had on disk: nothing has to be undone.
Proves: D51 P16

$ node a
$ set a 0 k1..k100=v*1000
$ uprmc observe k100 --vbuckets 0 --node a --wait
k100 vBucket 0 persisted CAS #1
$ node b
$ uprmc replicate --node b --source a --vbuckets 1-3 --wait
vBuckets 1-3: following a, 3 streaming, 0 changes behind
$ line a pass 60000
$ uprmc replicate --node b --source a --vbuckets 0
vBucket 0: following a, 1 streaming, ...
$ until uprmc stats vbucket-seqno --node b |grep vb_0:last_persisted_seqno
vb_0:last_persisted_seqno 5...
$ kill b
$ node b
$ uprmc stats vbucket-seqno --node b |grep vb_0:
vb_0:high_seqno 0
vb_0:abs_high_seqno 5...
vb_0:last_persisted_seqno 5...
vb_0:last_persisted_snap_start 0
vb_0:last_persisted_snap_end 100
vb_0:purge_seqno 0
vb_0:uuid #2
$ line a open
$ uprmc replicate --node b --source a --vbuckets 0 --wait
vBucket 0: following a, 1 streaming, 0 changes behind
$ uprmc stats replication --node b |grep source_a:items
source_a:items 4...
$ kill a
$ node a
$ set a 0 k101=v
$ uprmc replicate --node b --source a --vbuckets 0 --wait
vBucket 0: following a, 1 streaming, 0 changes behind
$ get-replica b 0 k101
k101=v
$ uprmc stats replication --node b |grep source_a:rollbacks
source_a:rollbacks 0
