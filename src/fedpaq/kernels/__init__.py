"""KERNELS: numba for the CPU, Triton for CUDA; each the twin of something readable."""
