"""The host side of the fused path: which rows, factors and sinks each program of the kernels works on."""
