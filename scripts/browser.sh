#!/usr/bin/env bash
# A browser for the tests of the page: one that is installed, else Debian's chromium, unpacked into a folder (no root
# needed, nothing outside the folder changes). Leaves FOLDER/chromium, or FOLDER/why with the reason why there is none.
set -euo pipefail
folder=$1
rm -rf "$folder"
mkdir -p "$folder/debs"
no() { rm -rf "$folder/debs"; echo "$1" > "$folder/why"; echo "No browser: $1. The tests in a browser are skipped."; exit 0; }

for known in chromium chromium-browser google-chrome; do
    if found=$(command -v "$known"); then
        ln -s "$found" "$folder/chromium"
        rm -r "$folder/debs"
        exit 0
    fi
done
command -v apt-get > /dev/null && command -v dpkg-deb > /dev/null || no "chromium is not installed, and apt-get is not here to get it"
wanted=$(apt-get install --simulate --no-install-recommends chromium fonts-liberation 2> /dev/null | awk '/^Inst/ { print $2 }') || wanted=
[ -n "$wanted" ] || no "apt-get knows no chromium (apt-get update may help)"
(cd "$folder/debs" && timeout 120 apt-get download $wanted > /dev/null 2>&1) || no "chromium could not be downloaded within two minutes"
for deb in "$folder"/debs/*.deb; do dpkg-deb --extract "$deb" "$folder/root"; done
rm -r "$folder/debs"
cat > "$folder/chromium" <<'SH'
#!/bin/sh
root=$(dirname "$(readlink -f "$0")")/root
XDG_DATA_HOME=$root/usr/share # its fonts
LD_LIBRARY_PATH=$(find "$root/usr/lib" -name '*.so*' -printf '%h\n' | sort -u | paste -sd:)
export LD_LIBRARY_PATH XDG_DATA_HOME
exec "$root/usr/lib/chromium/chromium" "$@"
SH
chmod +x "$folder/chromium"
