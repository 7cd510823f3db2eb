#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs fuzz targets under libFuzzer with AddressSanitizer and UndefinedBehaviorSanitizer:
#
#   tests/fuzz/run.sh [TARGET]...
#
# FUZZ_SECONDS (60) is the processor time for each target, so that a busy machine does not make a run
# shorter; FUZZ_JOBS how many run at a time (one for each processor); CC (clang-14) the compiler,
# FUZZ_BUILD (build-fuzz) the build folder. What a run finds is
# kept in FUZZ_BUILD/finds/TARGET and built upon by the next; an input that fails is written to
# FUZZ_BUILD/failures/TARGET-... and makes the exit status 1. An input that takes longer than a
# minute is a failure, too (FUZZ_TIMEOUT, in seconds: more where the machine is shared).
set -eu

root=$(cd "$(dirname "$0")/../.." && pwd)
seconds=${FUZZ_SECONDS:-60}
build=${FUZZ_BUILD:-$root/build-fuzz}
CC=${CC:-clang-14}
export CC

prepare() {
	if [ ! -f "$build/build.ninja" ]; then
		meson setup -Dtests=true -Db_sanitize=address,undefined -Db_lundef=false \
			"-Dc_args=['-fsanitize=fuzzer-no-link','-fno-omit-frame-pointer','-fno-sanitize-recover=all']" \
			"$build" "$root"
	fi
	ninja -C "$build" tests/fuzz/seeds
}

# FUZZ_READY: this is one of several at a time, for which all is built.
if [ -z "${FUZZ_READY:-}" ]; then
	prepare
fi
if [ $# -eq 0 ]; then
	# Each target has seeds, inputs in the corpus, or both.
	for inputs in "$build"/tests/fuzz/seeds/* "$root"/tests/fuzz/corpus/*; do
		case " $* " in
		*" $(basename "$inputs") "*) ;;
		*) set -- "$@" "$(basename "$inputs")" ;;
		esac
	done
fi
if [ -z "${FUZZ_READY:-}" ]; then
	# The name of a target within the build is its path.
	for target in "$@"; do
		ninja -C "$build" "tests/fuzz/fuzz_$target"
	done
	mkdir -p "$build/failures"
	printf '%s\n' "$@" | FUZZ_READY=yes xargs -n 1 -P "${FUZZ_JOBS:-$(nproc)}" "$0" || {
		echo "some failed, see above"
		exit 1
	}
	exit 0
fi

# The processor seconds that a process has used, all its threads together; nothing once it has ended.
cpu_seconds() {
	sed 's/.*) //' "/proc/$1/stat" 2>/dev/null |
		awk -v hz="$(getconf CLK_TCK)" '$1 != "Z" { print int(($12 + $13) / hz) }'
}

# Runs a command until it has used its processor time; then libFuzzer is interrupted, which it
# answers with its final statistics and a status of its own.
interrupted=72
run_for() {
	limit=$1
	shift
	"$@" &
	pid=$!
	while used=$(cpu_seconds $pid) && [ -n "$used" ] && [ "$used" -lt "$limit" ]; do
		timeout 1 tail --pid=$pid -f /dev/null || true
	done
	kill -INT $pid 2>/dev/null || true
	status=0
	wait $pid || status=$?
	[ "$status" -eq 0 ] || [ "$status" -eq "$interrupted" ]
}

target=$1
finds=$build/finds/$target
log=$build/fuzz-$target.log
mkdir -p "$finds"
set -- -timeout="${FUZZ_TIMEOUT:-60}" -rss_limit_mb=2560 -max_len=20000 \
	-print_final_stats=1 -artifact_prefix="$build/failures/$target-"
words=$root/tests/fuzz/${target%_tls}.dict
if [ -f "$words" ]; then
	set -- "$@" -dict="$words"
fi
set -- "$@" "$finds"
for inputs in "$build/tests/fuzz/seeds/$target" "$root/tests/fuzz/corpus/$target"; do
	if [ -d "$inputs" ]; then
		set -- "$@" "$inputs"
	fi
done
if ! run_for "$seconds" "$build/tests/fuzz/fuzz_$target" "$@" >"$log" 2>&1; then
	printf '%-12s FAILED, see %s\n' "$target" "$log"
	exit 1
fi
awk -v target="$target" '/^stat::number_of_executed_units/ { runs = $2 }
	match($0, /cov: [0-9]+/) { cov = substr($0, RSTART + 5, RLENGTH - 5) }
	match($0, /corp: [0-9]+/) { corp = substr($0, RSTART + 6, RLENGTH - 6) }
	END { printf "%-12s %s runs, %s edges, %s inputs\n", target, runs, cov, corp }' "$log"
