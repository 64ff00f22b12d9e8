"""Ids to features: readers, documents, masking, packing, batching."""
