#!/usr/bin/env bash
# A GPU report of this folder: benchmarks/h200/run.sh OUT PART [flags of fk]; needs CUDA and the extra `gpu`.
#
#   tests       pytest tests/gpu
#   kernels     fk kernels --providers      of llama
#   self-test   fk kernels --self-test      of llama
#   eval        fk eval --self-test         of llama at its real size
#
# PYTHON names the interpreter. A long run may be cut into parts of other cases, which `fk merge` joins again:
#   SUFFIX=_1 run.sh OUT self-test --level 1;  SUFFIX=_2 run.sh OUT self-test --level 2;  ...
#   fk merge OUT/self_test_llama_*.json --json self_test_llama.json
set -uo pipefail
OUT=${1:?folder for the report}
PART=${2:?tests, kernels, self-test or eval}
shift 2
PYTHON=${PYTHON:-python3}
SUFFIX=${SUFFIX:-}
fk() { "$PYTHON" -m fastkernels "$@"; }

begin=$SECONDS
case $PART in
  tests) "$PYTHON" -m pytest tests/gpu -q --junitxml="$OUT/gpu_tests$SUFFIX.xml" "$@" | tee "$OUT/gpu_tests$SUFFIX.txt" | tail -20 ;;
  kernels) fk kernels --architecture llama --providers --json "$OUT/kernels_llama$SUFFIX.json" "$@" > "$OUT/kernels_llama$SUFFIX.txt" ;;
  self-test) fk kernels --architecture llama --self-test --json "$OUT/self_test_llama$SUFFIX.json" "$@" > "$OUT/self_test_llama$SUFFIX.txt" ;;
  eval) fk eval --model llama --size full --self-test --json "$OUT/eval_llama_self_test$SUFFIX.json" "$@" > "$OUT/eval_llama_self_test$SUFFIX.txt" ;;
  *) echo "no part '$PART': tests, kernels, self-test, eval" >&2; exit 2 ;;
esac
echo "$PART: exit $?, $((SECONDS - begin)) s"
