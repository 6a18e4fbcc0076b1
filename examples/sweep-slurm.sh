#!/bin/bash
#SBATCH --job-name=sweep
#SBATCH --ntasks=32
#SBATCH --cpus-per-task=1
#SBATCH --mem-per-cpu=4G
#SBATCH --time=12:00:00
# A sweep on SLURM: every task is a Dask worker. Submit it from a folder that all nodes share and that
# holds the study, its traces and the certificates (docs/sweep.md). ib0 is the nodes' shared network.
# --parts splits a single study; leave it out for a grid with more cells than workers.
set -eu
rm -f scheduler.json
tls="--protocol tls --tls-ca-file ca.pem --tls-cert own.pem --tls-key own.key"
common="$tls --no-dashboard --scheduler-file scheduler.json"
trap 'kill $(jobs -p)' EXIT
dask scheduler $common --port 0 &
until test -s scheduler.json; do kill -0 $!; sleep 1; done
srun dask worker $common --interface ib0 --nthreads 1 &
nearfar sweep study.toml -o study.sweep --dask scheduler.json --parts "$SLURM_NTASKS" \
  --dask-tls-ca ca.pem --dask-tls-cert own.pem --dask-tls-key own.key
