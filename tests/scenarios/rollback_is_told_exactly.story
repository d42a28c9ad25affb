`tail` prints changes of the active that its replica never gets. After the failover it says up to
which seqno its lines still count, and goes on from there.
Proves: D33

$ node a
$ node b
$ set a 0 k1=v k2=v
$ uprmc replicate --node b --source a --wait
vBuckets 0-3: following a, 4 streaming, 0 changes behind
$ uprmc replicate --node b --stop
all vBuckets: no longer following a source
$ uprmc tail --node a,b --vbuckets 0 --start 0 &
$ next 2
0:1 set k1 "v" rev 1, CAS #1
0:2 set k2 "v" rev 1, CAS #2
$ set a 0 k1=lost k3=lost
$ next 2
0:3 set k1 "lost" rev 2, CAS #3
0:4 set k3 "lost" rev 1, CAS #4
$ kill a
$ uprmc failover --node b --vbuckets 0
vBucket 0: active at b
$ set b 0 k2=new
$ next 2
0:2 rollback everything after it is void
0:3 set k2 "new" rev 2, CAS #5
$ uprmc failover-log 0 --node b
vBucket term vb_uuid begins after seqno
0 2 #6 2
0 #7 0

Who begins at a seqno is stopped, unless it asks for more.

$ uprmc tail --node b --vbuckets 0 --start 4 --uuid #6 --until-now
uprmc: vBucket 0: the node cannot continue from seqno 4, its history agrees only up to 3: discard later lines and use --start 3, or use --on-rollback rewind
exit code 1
$ uprmc tail --node b --vbuckets 0 --start 4 --uuid #6 --until-now --on-rollback rewind
uprmc: vBucket 0: the node cannot continue from seqno 4, its history agrees only up to 3; continuing from there
0:3 rollback everything after it is void
$ uprmc tail --node b --vbuckets 0 --start 4 --uuid #6 --until-now --on-rollback restart
uprmc: vBucket 0: the node cannot continue from seqno 4, its history agrees only up to 3; continuing from the beginning
0:0 rollback everything after it is void
0:1 set k1 "v" rev 1, CAS #1
0:3 set k2 "new" rev 2, CAS #5
$ uprmc tail --node b --vbuckets 0 --start 2 --uuid #6 --until-now
0:3 set k2 "new" rev 2, CAS #5
