"""How tensors lie in files, whatever they are called there: safetensors, TensorFlow's bundles, PyTorch's pickles."""
