"""What is on disk: the contract (`interface`), its reference model (`memory`), and LMDB."""
