"""From a trained model to a SavedModel that takes text."""
