//! Threads beside the shards that serve what is not the data path. Knows no shard and no metric: what it serves comes
//! from whoever starts it.

pub mod http;
