"""Production libraries that implement several kernels each: a file for each library, or for a part of it."""

PROVIDERS = __name__  # where implementations name their files
