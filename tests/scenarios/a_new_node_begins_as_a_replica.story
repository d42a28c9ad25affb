`--source` counts for an empty data directory only. What an operator does later stays.

$ node a
$ set a 0 k1=v
$ node b --source a
$ uprmc replicate --node b --source a --wait
vBuckets 0-3: following a, 4 streaming, 0 changes behind
$ get-replica b 0 k1
k1=v
$ kill b
$ node b
$ set a 0 k1=new
$ uprmc replicate --node b --source a --wait
vBuckets 0-3: following a, 4 streaming, 0 changes behind
$ get-replica b 0 k1
k1=new
$ uprmc failover --node b
vBuckets 0-3: active at b
$ stop b
$ node b
$ uprmc stats replication --node b |grep sources
sources 0
$ set b 0 k1=active
