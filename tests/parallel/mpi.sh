#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# One text for one process, for ranks that it starts and for ranks of mpirun; what mpirun's ranks say when they differ, when
# one is killed and when one core has several threads. mpi.sh MPIRUN ESPALIER EXCHANGES MODEL
set -euo pipefail
mpirun=$1 espalier=$2 exchanges=$3 model=$4
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_mpi_yield_when_idle=1
export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_btl_vader_single_copy_mechanism=none
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
exec 3>&2
fail() { echo "mpi.sh: $1" >&3; cat "$work"/* >&3; exit 1; }
# Ranks that do not end are a failure by their own command, not one of the whole script.
launch() {
    local status=0
    timeout -k 5 200 "$mpirun" --bind-to "${bind:-none}" --oversubscribe "$@" || status=$?
    [ $status != 124 ] || fail "no end after 200 s: mpirun $*"
    return $status
}

for count in 2 3; do
    launch -n "$count" "$exchanges" > "$work/exchanges" 2>&1 || true
    grep -q "$count ranks, 400 exchanges" "$work/exchanges" || fail "exchanges of $count ranks"
    ! grep -q "wrong\|are taken" "$work/exchanges" || fail "exchanges of $count ranks"
done

generate=("$espalier" generate "$model" "class Timer:" -n 30 --seed 3 --temperature 0.9 --speculation-memory off)
alone=("${generate[@]}")
generate+=(--threads 1)
"${generate[@]}" > "$work/alone" 2> "$work/log" || fail "one process"
for count in 2 4; do
    launch -n "$count" "${generate[@]}" > "$work/ranks" 2> "$work/log" || fail "$count ranks"
    cmp "$work/alone" "$work/ranks" || fail "the text of $count ranks"
done

# A rank with other kernels is named with the field.
if launch -n 1 "${generate[@]}" : -n 1 -x ESPALIER_CPU_VARIANT=portable "${generate[@]}" \
    > "$work/ranks" 2> "$work/log"; then
    fail "a rank of another variant is taken"
fi
grep -q "rank 1 has variant portable, rank 0 " "$work/log" || fail "the variant is not named"

# A number of ranks that mpirun did not start.
! launch -n 2 "${generate[@]}" --tp 3 > "$work/ranks" 2> "$work/log" || fail "--tp 3 of 2"
grep -q -- "--tensor-parallel-size: 3, but mpirun started 2 ranks" "$work/log" || fail "--tp 3 of 2 is not named"

# Two threads on one core are noticed.
"$mpirun" --bind-to core --oversubscribe -n 1 true 2> /dev/null && if [ "$(nproc)" -gt 1 ]; then
    bind=core launch -n 2 "${alone[@]}" --threads 2 > "$work/ranks" 2> "$work/log" || fail "bound ranks"
    grep -q "rank 1: 2 threads share 1 of the machine's" "$work/log" || fail "bound ranks are not noticed"
fi

# A rank that is killed, or stopped, ends all.
for signal in KILL STOP; do
    "$mpirun" --bind-to none --oversubscribe -n 2 "$espalier" generate "$model" abc -n 450 --ignore-eos --threads 1 \
        --speculation-memory off --speculate off --rank-timeout-seconds 1 > "$work/ranks" 2> "$work/log" &
    launcher=$!
    other=
    for _ in $(seq 600); do
        for rank in $(pgrep -P "$launcher" || true); do
            if tr '\0' '\n' < "/proc/$rank/environ" 2> /dev/null | grep -qx OMPI_COMM_WORLD_RANK=1; then other=$rank; fi
        done
        # It computes: rank 0 has written.
        [ -n "$other" ] && [ -s "$work/ranks" ] && break
        sleep 0.05
    done
    [ -n "$other" ] || fail "rank 1 did not start"
    kill -$signal "$other"
    timeout 200 tail --pid="$launcher" -f /dev/null || fail "no end after $signal to rank 1"
    ! wait "$launcher" || fail "a rank that is gone is no failure"
    [ $signal = KILL ] || grep -q "rank 1: no answer for 1 s" "$work/log" || fail "a stopped rank is not named"
    for _ in $(seq 200); do
        [ -d "/proc/$other" ] || break
        sleep 0.05
    done
    [ ! -d "/proc/$other" ] || fail "rank 1 is left"
done
