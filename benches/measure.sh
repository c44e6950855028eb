#!/bin/sh
# Takes the figures of docs/benchmarks.md on this machine's GPU: `measure [--out FOLDER] [STEP...]`, each step for its time at most. What a step
# printed is in FOLDER (/tmp/dormouse-measured) under its name; a table of what was run comes last. Without steps all are taken, in some 55 minutes.
set -u
here=$(dirname "$(readlink -f "$0")")
out=/tmp/dormouse-measured
if [ "${1:-}" = --out ]; then out=$2; shift 2; fi
mkdir -p "$out" || exit 1
wanted=" $* "
known=" "
table=
failed=0

# NAME SECONDS COMMAND...
step() {
    name=$1 limit=$2
    shift 2
    case $known in *" ${name%-native} "*) ;; *) known="$known${name%-native} " ;; esac
    case $wanted in "  " | *" ${name%-native} "*) ;; *) return ;; esac
    begun=$(date +%s)
    timeout --kill-after=10 "$limit" "$@" >"$out/$name" 2>&1 </dev/null
    code=$?
    took=$(($(date +%s) - begun))
    [ "$code" -eq 0 ] || failed=1
    printf '%s: exit code %s after %s s\n' "$name" "$code" "$took"
    table="$table$(printf '%-20s %9s %7s' "$name" "$code" "$took")
"
}

# A program natively and under Dormouse, in turn.
both() {
    program=$1 seconds=$2
    shift 2
    step "$program-native" "$seconds" "$@"
    step "$program" "$seconds" "$here/bin/dormouse" run --device gpu -- "$@"
}

both calls 60 "$here/bench/calls"
both marked 120 "$here/bench/marked" 60
for poll in every count:16 barrier; do
    step "marked-$poll" 60 env "DORMOUSE_POLL=$poll" "$here/bin/dormouse" run --device gpu -- "$here/bench/marked" 60
done
step stopped 400 python3 "$here/bench/stopped.py" --polls adaptive
step stopped-polls 300 python3 "$here/bench/stopped.py" --polls every,count:16,barrier --checkpoints 30
both managed-1024 120 "$here/bench/managed" 1024
both managed-8192 180 "$here/bench/managed" 8192
step checkpoints-1-8 300 "$here/bin/checkpoint-bench" --to-disk 1,8 --to-memory --suspended
step checkpoints-32 300 "$here/bin/checkpoint-bench" --to-disk 32 --to-memory --suspended
step checkpoints-64 400 "$here/bin/checkpoint-bench" --to-disk --to-memory 64 --suspended
step checkpoints-100 590 "$here/bin/checkpoint-bench" --to-disk --to-memory 100 --suspended
step suspended 120 "$here/bin/checkpoint-bench" --to-disk --to-memory --suspended 1,20
for held in "" held; do
    step "last-byte${held:+-$held}" 90 "$here/bin/dormouse" run --device gpu --store "$out/store" --every 5s -- "$here/bench/last_byte" 20 25 $held
    rm -rf "$out/store"
done
# What the device has for such a program where nothing is checkpointed.
step last-byte-alone 60 "$here/bin/dormouse" run --device gpu -- "$here/bench/last_byte" 20 25
step migrate 120 python3 "$here/bench/migrate.py"
step shared 120 python3 "$here/bench/shared.py" --mib 2048
step network 590 "$here/bin/network-bench"
# Some 130 s, 20 GiB on the device that all change, and 4 on the host.
step training 590 python3 "$here/bench/whole.py" --limit 580 --every 30 -- python3 "$here/bench/train.py" 80 2000 0 4
# The same training for a minute natively and under Dormouse, and for five with checkpoints.
step training-steps 590 python3 "$here/bench/steps.py" --seconds 300 --without 60 --threads default

printf '\n%-20s %9s %7s\n' step 'exit code' seconds
printf '%s' "$table"
for name in "$@"; do
    case $known in *" $name "*) ;; *) echo "there is no step $name; there are:$known" >&2; failed=2 ;; esac
done
exit $failed
