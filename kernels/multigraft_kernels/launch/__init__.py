"""Launch choices of the kernels: frozen data per class of device, found by measuring, with a rule for unknown devices."""
