#!/bin/bash
# Written by profpipe 1.2.3. Task i of the array runs index i of plan.json in this folder.
#SBATCH --job-name=profpipe-sweep
#SBATCH --array=0-41%8
#SBATCH --output="/shared/out/it's 100 %%/run/slurm/logs/%A_%a.txt"
#SBATCH --open-mode=append
#SBATCH --partition=gpu
#SBATCH --gres=gpu:h100:1
#SBATCH --constraint=[rack1|rack2]
#SBATCH --time=1:30:00
#SBATCH --mem=64G
#SBATCH -A physics
#SBATCH --comment="a \"b\" \\ c #d"
cd '/shared/it'"'"'s' || exit
module load cuda
source venv/bin/activate
exec apptainer exec --nv 'my image.sif' python3 -m profpipe task '/shared/out/it'"'"'s 100 %/run' "$((SLURM_ARRAY_TASK_ID + ${1:-0}))"
