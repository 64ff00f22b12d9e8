"""Pre-training corpora: text files and prepared shards, read as documents of token ids and batched."""
