#!/usr/bin/env bash
# Install those of the named Debian packages that are missing. If that is not possible, print the
# command to run; the exit code is 0 all the same, so that the caller continues without them.
set -u
missing=()
for package in "$@"; do
  dpkg -s "$package" >/dev/null 2>&1 || missing+=("$package")
done
[ ${#missing[@]} -eq 0 ] && exit 0
command="apt-get install -y ${missing[*]}"
run=()
if [ "$(id -u)" -ne 0 ]; then
  if sudo -n true 2>/dev/null; then run=(sudo -n); else
    echo "nearfar: not allowed to install ${missing[*]}; run: sudo $command" >&2
    exit 0
  fi
fi
if ! command -v apt-get >/dev/null; then
  echo "nearfar: no apt-get here; install by hand: ${missing[*]}" >&2
  exit 0
fi
echo "nearfar: installing ${missing[*]}" >&2
export DEBIAN_FRONTEND=noninteractive
"${run[@]}" apt-get install -y -q "${missing[@]}" >/dev/null 2>&1 ||
  { "${run[@]}" apt-get update -q >/dev/null 2>&1 &&
    "${run[@]}" apt-get install -y -q "${missing[@]}" >/dev/null 2>&1; } ||
  echo "nearfar: could not install ${missing[*]}; run: $command" >&2
exit 0
