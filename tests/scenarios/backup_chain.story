A full backup and two increments. Between them the node crashes and loses a change that the second
backup has: the third one takes it back, and each state of the chain can be restored.

$ node a
$ set a - k1..k3=v
$ uprmc observe k1 --node a --wait
k1 vBucket 2 persisted CAS #1
$ uprmc observe k2 --node a --wait
k2 vBucket 3 persisted CAS #2
$ uprmc observe k3 --node a --wait
k3 vBucket 0 persisted CAS #3
$ disk a rests
$ uprmc backup backups --node a --parallelism 1
full backup 0 of chain ...: 3 rows (0 deletions) of 4 vBuckets, ...
$ set a - k1=lost
$ delete a - k2
$ uprmc backup backups --node a --parallelism 1
increment 1 of chain ...: 2 rows (1 deletions) of 4 vBuckets, ...
$ kill a
$ node a
$ set a - k4=v
$ uprmc backup backups --node a --parallelism 1
increment 2 of chain ...: 1 rows (0 deletions) of 4 vBuckets, ...
history branched: 2 vBuckets were cut, 0 are complete again

$ node b
$ uprmc restore backups --node b --parallelism 1 --dry-run
increment 2 of chain-0001: 4 rows, 4 would be written
now: 4 only in backup backups/chain-0001/0002-incr (4 documents of backup backups/chain-0001/0002-incr and 0 of node b, 4 vBuckets); such as k3, k4, k1, k2
$ get b - k1
k1: not found
$ uprmc restore backups --node b --parallelism 1
increment 2 of chain-0001: 4 rows, 4 written
no difference: 4 documents of backup backups/chain-0001/0002-incr and 4 of node b, 4 vBuckets
$ get b - k1 k2 k3 k4
k1=v
k2=v
k3=v
k4=v
$ uprmc verify a b --lag 0 --parallelism 1
no difference: 4 documents of node a and 4 of node b, 4 vBuckets
$ uprmc verify b backups --at 1 --lag 0 --parallelism 1
2 only in node b; 1 differ (4 documents of node b and 2 of backup backups/chain-0001/0001-incr, 4 vBuckets); such as k4, k1, k2
uprmc: UPRMC_DIFFERENT 3 documents differ
exit code 1

$ node c
$ uprmc restore backups --at 1 --node c --parallelism 1
increment 1 of chain-0001: 3 rows, 3 written
no difference: 2 documents of backup backups/chain-0001/0001-incr and 2 of node c, 4 vBuckets
$ get c - k1 k2 k3 k4
k1=lost
k2: not found
k3=v
k4: not found

An older state replaces newer versions only by force.

$ set c - k3=other
$ uprmc verify b c --lag 0 --parallelism 1
2 only in node b; 2 differ (4 documents of node b and 2 of node c, 4 vBuckets); such as k3, k4, k1, k2
uprmc: UPRMC_DIFFERENT 4 documents differ
exit code 1
$ uprmc restore backups --at 0 --node c --force --parallelism 1 --no-check
increment 0 of chain-0001: 3 rows, 3 written
3 of them replaced a newer version
$ get c - k1 k2 k3
k1=v
k2=v
k3=v
