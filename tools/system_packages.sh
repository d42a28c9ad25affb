#!/bin/sh
# Install the programs that tests use but pip cannot bring: the memcached server and
# libmemcached's tools to talk to and compare with, a C compiler for the load generator, the
# headers pylibmc needs where no ready-made wheel of it exists, spymemcached with a JDK to compile
# and run programs on it, Node.js with npm for PouchDB, Chromium for the page, curl, the PLAIN login
# of libmemcached, systemd-analyze for the unit, and groff for the manual. With the argument "bench"
# also what only benchmarks compare with: the Redis server.
#
# Does nothing when all are there. Without apt-get, or without the right to use it, it says what is
# missing and succeeds: what needs those programs is then skipped and says so.
set -u

missing=""

need_program() { # program package
    command -v "$1" >/dev/null 2>&1 || [ -x "/usr/bin/$1" ] || missing="$missing $2"
}

need_program memcached memcached
need_program memccapable libmemcached-tools
need_program cc gcc
need_program javac default-jdk-headless
need_program node nodejs
need_program npm npm
need_program chromium chromium
need_program curl curl
need_program systemd-analyze systemd
need_program groff groff-base
[ -e /usr/share/java/spymemcached.jar ] || missing="$missing libspymemcached-java"
[ "${1:-}" = bench ] && need_program redis-server redis-server

# A header that is there proves the development package whatever the system calls it.
need_header() { # header package
    for directory in /usr/include /usr/local/include /opt/homebrew/include; do
        [ -e "$directory/$1" ] && return
    done
    missing="$missing $2"
}

ls /usr/lib/*/sasl2/libplain.so >/dev/null 2>&1 || missing="$missing libsasl2-modules"

need_header libmemcached/memcached.h libmemcached-dev
need_header zlib.h zlib1g-dev

[ -z "$missing" ] && exit 0

as_root=""
if [ "$(id -u)" -ne 0 ]; then
    if command -v sudo >/dev/null 2>&1 && sudo -n true >/dev/null 2>&1; then
        as_root="sudo -n"
    else
        as_root="nobody"
    fi
fi

if command -v apt-get >/dev/null 2>&1 && [ "$as_root" != "nobody" ]; then
    echo "installing:$missing"
    log=$(mktemp) || exit 0
    DEBIAN_FRONTEND=noninteractive
    export DEBIAN_FRONTEND
    install() { $as_root apt-get install -y --no-install-recommends "$@"; }
    # What one system does not have must not keep the others away.
    install_each() {
        failed=""
        for package in $missing; do
            install "$package" || failed="$failed $package"
        done
        [ -z "$failed" ]
    }
    # shellcheck disable=SC2086 - it is a list of words
    install_all() { install $missing || { $as_root apt-get update && install $missing; }; }
    # Packages of servers start a service on the port that is used by default here.
    no_services() {
        command -v systemctl >/dev/null 2>&1 || return
        for service in memcached redis-server; do
            case "$missing" in
            *" $service"*) $as_root systemctl disable --now "$service" ;;
            esac
        done
    }
    if { install_all || install_each; } >"$log" 2>&1; then
        no_services >/dev/null 2>&1
        rm -f "$log"
        exit 0
    fi
    no_services >/dev/null 2>&1
    tail -n 5 "$log" >&2
    rm -f "$log"
    missing=$failed
    echo "the system's package manager could not install all of them" >&2
fi

echo "not installed (Debian's names):$missing" >&2
echo "what needs them is skipped; to have it:  apt-get install$missing" >&2
exit 0
