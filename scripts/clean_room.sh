#!/usr/bin/env bash
# Proves the README's two commands on a Debian 12 that has nothing: debootstrap, HEAD, demo, demo again, tests.
#
#   scripts/clean_room.sh [--ci] [DIR]
#
# --ci: also the whole of .ci/run, which shows an install step that CI's own machine hides.
# DIR must not exist yet; it is left for inspection. Without it the room is a temporary folder, removed at the end.
# Needs root and debootstrap. Mounts exist only in mount namespaces of its own, so they end with the command that
# needed them, however it ends, and no `rm` outside can follow them.
set -euo pipefail
root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
suite=bookworm

refuse() { echo "clean_room: $*" >&2; exit 2; }
say() { printf '\n== %s\n' "$*"; }

ci=0
if [[ ${1:-} == --ci ]]; then ci=1; shift; fi
[[ $# -le 1 && ${1:-} != -* ]] || refuse "usage: scripts/clean_room.sh [--ci] [DIR]"
(( EUID == 0 )) || refuse "needs root (chroot and mounts): run it with sudo"
command -v debootstrap >/dev/null || refuse "needs debootstrap: apt-get install -y --no-install-recommends debootstrap"
unshare --mount true 2>/dev/null || refuse "needs mount namespaces (unshare --mount), which are not allowed here"
git -C "$root" rev-parse -q --verify HEAD >/dev/null || refuse "needs a git checkout with a commit"
mirror=$(sed -nE 's/^URIs:[[:space:]]*([^[:space:]]+).*/\1/p; s/^deb ([^[][^[:space:]]*).*/\1/p' \
    /etc/apt/sources.list.d/debian.sources /etc/apt/sources.list 2>/dev/null | head -n 1) || true
[[ -n $mirror ]] || refuse "finds no Debian mirror in this machine's apt sources"

if (( $# )); then
    [[ ! -e $1 ]] || refuse "$1 exists"
    mkdir -p -- "$1"
    room=$(cd -- "$1" && pwd)
else
    room=$(mktemp -d)
    trap 'rm -rf --one-file-system -- "$room"' EXIT
fi
chmod 755 -- "$room"  # it becomes / there, and apt's own user must get through
# Else a signal would end the shell without its EXIT trap.
trap 'exit 130' INT TERM HUP

say "debootstrap $suite into $room"
unshare --mount debootstrap --variant=minbase "$suite" "$room" "$mirror" >"$room.log" 2>&1 </dev/null ||
    { tail -n 20 "$room.log" >&2; exit 1; }
rm -f -- "$room.log"

# How this machine reaches its registries, if in a way of its own. What does not exist here is not needed there.
for file in /etc/apt/sources.list /etc/apt/sources.list.d/debian.sources /etc/apt/apt.conf.d /etc/apt/apt.conf \
        /etc/pip.conf /etc/hosts /etc/ssl/certs/ca-certificates.crt /usr/local/share/ca-certificates \
        "${PIP_CERT:-}" "${SSL_CERT_FILE:-}"; do
    [[ -e $file ]] || continue
    mkdir -p -- "$room${file%/*}"
    cp -rLT -- "$file" "$room$file"
done
[[ ! -e $room/etc/apt/sources.list.d/debian.sources || -e /etc/apt/sources.list ]] || rm -f -- "$room/etc/apt/sources.list"
kept=()
for name in http_proxy https_proxy no_proxy HTTP_PROXY HTTPS_PROXY NO_PROXY PIP_CERT PIP_INDEX_URL SSL_CERT_FILE; do
    [[ -z ${!name:-} ]] || kept+=("$name=${!name}")
done

checkout='/root/a checkout'  # the space is part of the proof
mkdir -p -- "$room$checkout"
if (( ci )); then
    git clone -q --no-local "$root" "$room$checkout"  # CI lists the tracked files
else
    git -C "$root" archive HEAD | tar -x -C "$room$checkout"  # the commands need no git
fi

# inside COMMAND: in the room, from / and with a bare environment, as a person who has just logged in.
inside() {
    # shellcheck disable=SC2016  # expanded by the inner shell
    unshare --mount bash -euc '
        room=$1; shift
        for path in proc sys dev; do mount --rbind "/$path" "$room/$path"; done
        exec chroot "$room" "$@"' inside "$room" \
        env -i HOME=/root TERM=dumb PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "${kept[@]}" "$@" </dev/null
}

summary=()
over=0
# timed NAME LIMIT COMMAND...
timed() {
    local name=$1 limit=$2 start=$SECONDS took
    shift 2
    say "$name: ${*#"$checkout/"}"
    inside "$@" || { echo "clean_room: $name failed after $((SECONDS - start)) s" >&2; exit 1; }
    took=$((SECONDS - start))
    summary+=("$(printf '%-28s %4d s of at most %d s' "$name" "$took" "$limit")")
    (( took <= limit )) || over=1
}
timed "demo, from nothing" 300 "$checkout/scripts/demo.sh"
timed "demo, again" 10 "$checkout/scripts/demo.sh"
timed "tests, from there" 600 "$checkout/scripts/test.sh"
timed "demo, after the tests" 10 "$checkout/scripts/demo.sh"
if (( ci )); then timed "CI" 5400 "$checkout/.ci/run"; fi

say "clean room on $(nproc) cores, $(git -C "$root" log -1 --format=%h)"
printf '%s\n' "${summary[@]}"
(( over == 0 )) || { echo "clean_room: over a limit" >&2; exit 1; }
if (( $# )); then echo "The room is left in $room."; fi
