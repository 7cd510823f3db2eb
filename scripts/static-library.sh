#!/bin/sh
# static-library.sh OUTPUT COMPILER... -- ARCHIVES...: makes one static library of the first archive
# and what it needs of the others, as one object in which hidden names are local, and libclan's too:
# a program may link the libclan of another version.
set -eu
output=$1
shift
compiler=
while [ "$1" != -- ]; do
	compiler="$compiler $1"
	shift
done
shift
# Otherwise gcc makes an object with LTO code of archives with LTO code, whose names objcopy cannot hide.
case $($compiler --version) in
*"Free Software Foundation"*) compiler="$compiler -flinker-output=nolto-rel" ;;
esac
first=$1
shift
object=$output.o
trap 'rm -f "$object"' EXIT
# shellcheck disable=SC2086
$compiler -r -nostdlib -o "$object" -Wl,--whole-archive "$first" -Wl,--no-whole-archive \
	-Wl,--start-group "$@" -Wl,--end-group
objcopy --localize-hidden --wildcard --localize-symbol='clan_*' "$object"
rm -f "$output"
ar rcs "$output" "$object"
