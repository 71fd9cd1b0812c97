"""From files to modules: overlays of task trees, candidates, inputs, weights."""
