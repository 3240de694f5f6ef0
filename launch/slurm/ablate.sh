#!/usr/bin/env bash
# An ablation as a job array: each task takes every N-th cell, and tasks that are started again go on.
#   sbatch --array=1-24 --ntasks=1 --cpus-per-task=4 --time=1:00:00 launch/slurm/ablate.sh CONFIG [key=value...]
# The tasks share the folder of the config's name in runs/; keel report runs/NAME shows what is finished at any time.
set -euo pipefail
[ -n "${SLURM_ARRAY_TASK_ID:-}" ] || { echo "start this with sbatch --array=1-N" >&2; exit 2; }
export OMP_NUM_THREADS=${SLURM_CPUS_PER_TASK:-1}
task=$((SLURM_ARRAY_TASK_ID - SLURM_ARRAY_TASK_MIN + 1))
exec srun "${KEEL:-keel}" ablate "$@" --task "$task/$SLURM_ARRAY_TASK_COUNT"
