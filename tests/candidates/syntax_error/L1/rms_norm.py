"""A bracket is missing."""

class RMSNorm(:
    pass
