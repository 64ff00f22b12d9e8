"""Raw text and prepared shards as documents of token ids, and batches for pre-training."""
