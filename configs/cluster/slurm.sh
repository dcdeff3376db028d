#!/usr/bin/env bash
# A Ray cluster over the nodes of a SLURM allocation, and one command of lit-cfl on it: docs/clusters.md, "SLURM".
#   sbatch configs/cluster/slurm.sh tune --config tune/quickstart --study_dir "$HOME/studies/quickstart"
#SBATCH --job-name=lit-cfl
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --exclusive
#SBATCH --time=04:00:00
#SBATCH --signal=B:TERM@120
#SBATCH --output=%x-%j.log
set -euo pipefail

[ "$#" -gt 0 ] || { echo "usage: sbatch slurm.sh tune --config FILE --study_dir DIR" >&2; exit 2; }
# shellcheck source=/dev/null
[ -z "${LITCFL_VENV:-}" ] || . "$LITCFL_VENV/bin/activate"

cpus=${SLURM_CPUS_PER_TASK:-}
[ -n "$cpus" ] || { echo "SLURM_CPUS_PER_TASK is not set: give sbatch --cpus-per-task N" >&2; exit 2; }
port=${LITCFL_HEAD_PORT:-$((20000 + $(printf %s "$SLURM_JOB_ID" | cksum | cut -d " " -f 1) % 12000))} # a port computed from the job id
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN RAY_TMPDIR="/tmp/ray-$SLURM_JOB_ID"
RAY_AUTH_TOKEN=$(python3 -c "import secrets; print(secrets.token_hex(32))")

mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
head_ip=${LITCFL_HEAD_IP:-}
if [ -z "$head_ip" ]; then # the first IPv4 address that other nodes can reach; a loopback address only if there is one node
    listed=$(srun --nodes=1 --ntasks=1 --nodelist="${nodes[0]}" hostname --ip-address)
    found=$(tr -s '[:space:]' '\n' <<<"$listed" | grep -E '^[0-9]+(\.[0-9]+){3}$' || true)
    [ "${#nodes[@]}" -eq 1 ] || found=$(grep -v '^127\.' <<<"$found" || true)
    head_ip=$(head -n 1 <<<"$found")
fi
[ -n "$head_ip" ] || {
    echo "${nodes[0]} names no IPv4 address that other nodes reach ('${listed:-}'); set LITCFL_HEAD_IP to its address" >&2
    exit 1
}
case $head_ip in *:*) export RAY_ADDRESS="[$head_ip]:$port" ;; *) export RAY_ADDRESS="$head_ip:$port" ;; esac

pids=()
trap 'kill "${pids[@]}" 2>/dev/null || true; wait "${pids[@]}" 2>/dev/null || true' EXIT

on_node() { # on_node NAME ARGUMENTS...: runs a part of the cluster on one node until this script ends
    local node=$1
    shift
    srun --nodes=1 --ntasks=1 --cpus-per-task="$cpus" --overlap --nodelist="$node" --export=ALL \
        env -u RAY_ADDRESS ray start --block --disable-usage-stats --num-cpus="$cpus" "$@" &
    pids+=("$!")
}

on_node "${nodes[0]}" --head --node-ip-address="$head_ip" --port="$port"
for _ in {1..60}; do
    ray health-check --address "$RAY_ADDRESS" >/dev/null 2>&1 && break
    kill -0 "${pids[0]}" 2>/dev/null || { echo "the head of the Ray cluster did not start" >&2; exit 1; }
    sleep 2
done
for node in "${nodes[@]:1}"; do
    on_node "$node" --address="$RAY_ADDRESS"
done

python3 - "${#nodes[@]}" <<'PYTHON'
import sys
import time
import ray

ray.init(log_to_driver=False)
for _ in range(120):
    alive = sum(node["Alive"] for node in ray.nodes())
    if alive == int(sys.argv[1]):
        sys.exit()
    time.sleep(1)
sys.exit(f"only {alive} of {sys.argv[1]} nodes joined the Ray cluster")
PYTHON

lit-cfl "$@" &
command=$!
trap 'kill -TERM "$command"' TERM INT # near the time limit, the command saves its state and prints how to resume
until wait "$command"; do
    status=$?
    kill -0 "$command" 2>/dev/null || exit "$status" # otherwise a signal ended the wait, not the command
done
