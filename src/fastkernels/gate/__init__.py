"""The gate of CI: a head against its base, on one device, in one job."""
