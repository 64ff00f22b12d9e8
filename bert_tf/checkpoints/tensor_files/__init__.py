"""Files of named tensors: safetensors, TensorFlow's bundles, PyTorch's pickles."""
