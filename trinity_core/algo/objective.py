"""The kernel's loss: terms, corrections, KL, entropy and value, reduced with weights counted on the host. Picklable."""
