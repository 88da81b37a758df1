"""Triton and Gluon kernels of the fused LoRA linear; `multi_lora.fused_linear` puts them together."""
