#!/bin/sh
# Installs bubblewrap where that is possible without asking; says so where it is not. Never fails:
# without it Polar runs agents as plain processes, with a warning.
set -u

command -v bwrap >/dev/null 2>&1 && exit 0

if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null 2>&1; then
    echo "installing bubblewrap (the sandbox that agents run in)"
    export DEBIAN_FRONTEND=noninteractive
    if apt-get install -y -qq bubblewrap >/dev/null 2>&1 ||
        { apt-get update -qq && apt-get install -y -qq bubblewrap; } >/dev/null 2>&1; then
        exit 0
    fi
fi

echo "note: bubblewrap is not installed, so agents will run without a sandbox." >&2
echo "      Install it with your package manager: apt install bubblewrap" >&2
exit 0
