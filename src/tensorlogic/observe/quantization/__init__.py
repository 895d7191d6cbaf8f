"""Quantization of whole graphs: calibration by hooks, better rounding, precision by budget, and the report."""
