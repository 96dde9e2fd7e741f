"""Chains past one device: the states in slices over the ranks of a `torch.distributed` process group."""

from tailsum.distributed.sharded_chain import ShardedChain
from tailsum.distributed.shards import local_states

__all__ = ["ShardedChain", "local_states"]
