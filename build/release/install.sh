#!/bin/sh
# Installs the command and the filter of a release, on Linux and macOS:
#
#   sh install.sh [RELEASE]    a folder or an https address (default: the folder of this script)
#
#   /usr/local/bin/sluice          or PREFIX/bin/sluice, if PREFIX is set
#   /usr/lib/sluice/sluice.wasm    or PREFIX/lib/sluice/sluice.wasm
#
# First it compares both with SHA256SUMS. If KEY names a file with a public key, SHA256SUMS must
# also have a signature of this key. If anything is wrong, it installs nothing.
set -eu

fail() {
	echo "error: $1. Nothing was installed." >&2
	exit 1
}

# get copies a file of the release to $tmp.
get() {
	case $release in
	https://* | http://127.0.0.1[:/]* | http://localhost[:/]*)
		command -v curl >/dev/null || fail "to get a release from an address, this script needs curl"
		why=$(curl -fsSL --proto-redir =https -o "$tmp/$1" "$release/$1" 2>&1) ||
			fail "cannot get $release/$1: $why"
		;;
	*://*) fail "$release is neither a folder nor an address that begins with https://" ;;
	*) cp "$release/$1" "$tmp/$1" 2>/dev/null || fail "the folder $release has no $1" ;;
	esac
}

digest() {
	if command -v sha256sum >/dev/null; then sha256sum; else shasum -a 256; fi <"$1" | cut -d ' ' -f 1
}

# check gets a file and compares it with its line in SHA256SUMS.
check() {
	want=$(awk -v file="$1" '$2 == file { print $1 }' "$tmp/SHA256SUMS")
	[ -n "$want" ] || fail "SHA256SUMS has no line for $1"
	get "$1"
	[ "$(digest "$tmp/$1")" = "$want" ] || fail "$1 is not the file that SHA256SUMS lists"
}

# verify checks the signature of SHA256SUMS.
verify() {
	command -v openssl >/dev/null || fail "to check a signature, this script needs openssl"
	[ -r "$KEY" ] || fail "cannot read the key $KEY"
	get SHA256SUMS.sig
	{
		openssl base64 -d -A -in "$tmp/SHA256SUMS.sig" -out "$tmp/signature" &&
			openssl dgst -sha256 -verify "$KEY" -signature "$tmp/signature" "$tmp/SHA256SUMS"
	} >/dev/null 2>&1 ||
		fail "SHA256SUMS has no valid signature of the key $KEY"
}

main() {
	release=${1:-$(dirname "$0")}
	release=${release%/}
	case ${PREFIX:-/} in
	/*) ;;
	*) PREFIX=$PWD/$PREFIX ;;
	esac
	bin=${PREFIX:-/usr/local}/bin
	lib=${PREFIX:-/usr}/lib/sluice
	command -v sha256sum >/dev/null || command -v shasum >/dev/null ||
		fail "to compare digests, this script needs sha256sum or shasum"
	umask 022
	tmp=$(mktemp -d)
	trap 'rm -rf "$tmp" "$bin/sluice.new" "$lib/sluice.wasm.new"' EXIT
	trap 'exit 1' HUP INT TERM

	get SHA256SUMS
	[ -z "${KEY:-}" ] || verify
	platform=$(uname -s | tr '[:upper:]' '[:lower:]')-$(uname -m | sed -e 's/^x86_64$/amd64/' -e 's/^aarch64$/arm64/')
	commands=$(sed -n 's/^[0-9a-f]*  \(sluice-v.*-[a-z0-9]*-[a-z0-9]*\)$/\1/p' "$tmp/SHA256SUMS")
	program=$(echo "$commands" | grep -e "-$platform\$") ||
		fail "the release has no command for $platform, only $(echo $commands)"
	check "$program"
	check sluice.wasm

	for dir in "$bin" "$lib"; do
		mkdir -p "$dir" 2>/dev/null && [ -w "$dir" ] ||
			fail "cannot write to $dir: run this script as root, or set PREFIX, such as PREFIX=\$HOME/.local"
	done
	for file in "$bin/sluice" "$lib/sluice.wasm"; do
		[ ! -d "$file" ] || fail "$file is a folder: remove it, or set PREFIX"
	done
	# Processes that run an old file keep it, because the new one takes only its name.
	why=$(cp "$tmp/$program" "$bin/sluice.new" 2>&1) || fail "cannot write to $bin: $why"
	why=$(cp "$tmp/sluice.wasm" "$lib/sluice.wasm.new" 2>&1) || fail "cannot write to $lib: $why"
	chmod 755 "$bin/sluice.new"
	chmod 644 "$lib/sluice.wasm.new"
	mv -f "$bin/sluice.new" "$bin/sluice"
	mv -f "$lib/sluice.wasm.new" "$lib/sluice.wasm"

	echo "installed $bin/sluice and $lib/sluice.wasm"
	"$bin/sluice" --version
	[ -n "${KEY:-}" ] || echo "SHA256SUMS was not verified: set KEY to check its signature"
	case :$PATH: in
	*":$bin:"*) ;;
	*) echo "$bin is not in PATH yet: export PATH=\"$bin:\$PATH\"" ;;
	esac
}

main "$@"
