#!/usr/bin/env bash
# An ablation as a job array: each task takes the next cell that nobody has, until there is none; tasks that are started
# again go on. Their number only says how many cells run at a time.
#   sbatch --array=1-8 --ntasks=1 --cpus-per-task=4 --time=1:00:00 launch/slurm/ablate.sh CONFIG [key=value...]
# The tasks share the folder of the config's name in runs/, which needs a file system whose locks all hosts see (flock);
# keel report runs/NAME shows what is finished at any time.
set -euo pipefail
export OMP_NUM_THREADS=${SLURM_CPUS_PER_TASK:-1}
exec srun "${KEEL:-keel}" ablate "$@"
