"""Launch choices of the kernels: frozen data per class of device, measured, with a rule for unknown devices."""
