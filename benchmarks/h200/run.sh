#!/usr/bin/env bash
# The GPU reports of this folder: benchmarks/h200/run.sh OUT [tests|kernels|self-test|eval]... (default: all).
# Needs CUDA and the extra `gpu`; PYTHON names the interpreter. Hours are not needed: each part says what it took.
set -uo pipefail
OUT=${1:?folder for the reports}
shift
PARTS=("${@:-tests kernels self-test eval}")
PYTHON=${PYTHON:-python3}
fk() { "$PYTHON" -m fastkernels "$@"; }

for part in ${PARTS[*]}; do
  begin=$SECONDS
  case $part in
    tests) "$PYTHON" -m pytest tests/gpu -q --junitxml="$OUT/gpu_tests.xml" | tee "$OUT/gpu_tests.txt" | tail -20 ;;
    kernels) fk kernels --architecture llama --providers --budget "${BUDGET:-0.3}" --json "$OUT/kernels_llama.json" > "$OUT/kernels_llama.txt" ;;
    self-test) fk kernels --architecture llama --self-test --budget "${BUDGET:-2}" --json "$OUT/self_test_llama.json" > "$OUT/self_test_llama.txt" ;;
    eval) fk eval --model llama --size full --self-test --json "$OUT/eval_llama_self_test.json" > "$OUT/eval_llama_self_test.txt" ;;
    *) echo "no part '$part': tests, kernels, self-test, eval" >&2; exit 2 ;;
  esac
  echo "$part: exit $?, $((SECONDS - begin)) s"
done
