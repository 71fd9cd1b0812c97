"""MacroEval: pure functions on records, without torch."""
