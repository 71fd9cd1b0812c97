"""The inference engine: programs over stages, paged caches, a run-ahead scheduler on arrays, decode CUDA graphs."""
