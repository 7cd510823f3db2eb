#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Takes what run.sh found into the corpus, as far as it reaches code that the seeds do not:
#
#   tests/fuzz/keep_finds.sh TARGET...
set -eu

root=$(cd "$(dirname "$0")/../.." && pwd)
build=${FUZZ_BUILD:-$root/build-fuzz}
files_max=${KEEP_FILES:-150}
bytes_max=4096

for target in "$@"; do
	corpus=$root/tests/fuzz/corpus/$target
	merged=$build/merged/$target
	rm -rf "$merged"
	mkdir -p "$merged"
	mkdir -p "$corpus"
	for inputs in "$build/tests/fuzz/seeds/$target" "$corpus"; do
		find "$inputs" -type f -exec cp -t "$merged" {} + 2>/dev/null || true
	done
	seeds=$(ls "$merged")
	# -merge keeps of the finds only those that add coverage to what is there.
	"$build/tests/fuzz/fuzz_$target" -merge=1 -max_len=$bytes_max "$merged" \
		"$build/finds/$target" >"$build/merge-$target.log" 2>&1
	count=0
	for file in "$merged"/*; do
		name=$(basename "$file")
		if printf '%s\n' "$seeds" | grep -qxF -- "$name" || [ "$count" -ge "$files_max" ]; then
			continue
		fi
		cp "$file" "$corpus/found-$(printf %s "$name" | cut -c 1-12)"
		count=$((count + 1))
	done
	echo "$target: $count finds kept"
done
