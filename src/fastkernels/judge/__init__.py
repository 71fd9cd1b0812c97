"""What is right: oracle, comparison, rules, verdict. Never in one process with a candidate."""
