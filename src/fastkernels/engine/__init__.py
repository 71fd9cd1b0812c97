"""The inference engine: programs over stages, paged caches, a scheduler that runs ahead, CUDA graphs."""
