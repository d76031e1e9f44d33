"""The gates in formats of others: a stock token-classification checkpoint, and ONNX with and without int8."""
