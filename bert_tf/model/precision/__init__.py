"""Low precision: kernels for bfloat16 and int8, their choice by the processor, and encoders that compute with them."""
