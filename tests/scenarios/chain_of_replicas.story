c follows b before b follows a. The head of the chain is lost twice, and each time the next one
becomes the head. Nothing has to be undone, for nobody was ahead.
Proves: P16 P17

$ node a
$ node b
$ node c
$ uprmc replicate --node c --source b --vbuckets 0
vBucket 0: following b, ...
$ uprmc replicate --node b --source a --vbuckets 0 --wait
vBucket 0: following a, 1 streaming, 0 changes behind
$ set a 0 k1..k3=v
$ delete a 0 k2
$ uprmc replicate --node b --source a --vbuckets 0 --wait
vBucket 0: following a, 1 streaming, 0 changes behind
$ uprmc replicate --node c --source b --vbuckets 0 --wait
vBucket 0: following b, 1 streaming, 0 changes behind
$ uprmc tail --node c --vbuckets 0 --start 0 --until-now
0:1 set k1 "v" rev 1, CAS #1
0:3 set k3 "v" rev 1, CAS #2
0:4 delete k2 rev 2, CAS #3

A link in the middle restarts.

$ stop b
$ set a 0 k4=v
$ node b
$ uprmc replicate --node b --source a --vbuckets 0 --wait
vBucket 0: following a, 1 streaming, 0 changes behind
$ kill a
$ uprmc failover --node b
vBucket 0: active at b
$ set b 0 k1=new
$ until uprmc tail --node c --vbuckets 0 --start 0 --until-now
0:3 set k3 "v" rev 1, CAS #2
0:4 delete k2 rev 2, CAS #3
0:5 set k4 "v" rev ..., CAS #4
0:6 set k1 "new" rev 2, CAS #5
$ uprmc failover-log 0 --node c
vBucket term vb_uuid begins after seqno
0 2 #6 5
0 #7 0
$ kill b
$ uprmc failover --node c --vbuckets 0
vBucket 0: active at c
$ set c 0 k5=v

Who was active twice follows again.

$ node b
$ uprmc replicate --node b --source c --demote --vbuckets 0 --wait
vBucket 0: following c, 1 streaming, 0 changes behind
$ node a
$ uprmc replicate --node a --source b --demote --vbuckets 0 --wait
vBucket 0: following b, 1 streaming, 0 changes behind
$ get-replica a 0 k1 k2 k3 k4 k5
k1=new
k2: not found
k3=v
k4=v
k5=v
$ uprmc failover-log 0 --node a
vBucket term vb_uuid begins after seqno
0 3 #8 6
0 #6 5
0 #7 0
$ uprmc stats replication --node a |grep source_b:rollbacks
source_b:rollbacks 0
