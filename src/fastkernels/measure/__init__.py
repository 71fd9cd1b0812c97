"""What is measured: contracts, clocks, statistics, roofline, environment."""
