#!/usr/bin/env bash
# Check each script of FILES (names and patterns), on TARGET and for NKI if they are set. Writes a SARIF log of each to a
# folder, and the folder and the number of scripts with findings to GITHUB_OUTPUT. Fails if a script can't be checked.
set -uo pipefail
shopt -s globstar nullglob

folder="${RUNNER_TEMP:?}/trnrt-sarif"
rm -rf "$folder" && mkdir -p "$folder"
options=(${TARGET:+--target "$TARGET"} ${NKI:+--nki "$NKI"})
checked=0 failed=0

# Unquoted: split into names, and patterns expanded.
for script in $FILES; do
  checked=$((checked + 1))
  python -m trnrt nki check "$script" --sarif "$folder/$checked.sarif" "${options[@]}"
  case $? in
    0) ;;
    1) failed=$((failed + 1)) ;;
    *) echo "::error::$script could not be checked" && exit 2 ;;
  esac
done
if [ "$checked" = 0 ]; then
  echo "::error::no file matches $FILES" && exit 2
fi
echo "sarif=$folder" >>"$GITHUB_OUTPUT"
echo "failed=$failed" >>"$GITHUB_OUTPUT"
