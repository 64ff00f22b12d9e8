"""Low precision: what the processor has, kernels for bfloat16 and int8, and encoders that compute with them."""
