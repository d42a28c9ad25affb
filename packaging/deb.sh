#!/bin/sh
# Build dist/uprmc_VERSION_ARCH.deb: a virtual environment in /opt/uprmc, the unit, a sample
# configuration, manual pages and completion. It runs on the Debian release that built it, with
# that release's Python: packaging/deb.sh WHEEL [PYTHON]
set -eu

wheel=${1:?say which wheel: make wheel, then packaging/deb.sh dist/uprmc-*.whl}
python=${2:-/usr/bin/python3}
here=$(dirname "$0")
version=$("$python" -c 'import sys; print(sys.argv[1].rpartition("/")[2].split("-")[1])' "$wheel")
arch=$(dpkg --print-architecture)
minor=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
    echo "$python is older than Python 3.11" >&2
    exit 1
}

root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
chmod 755 "$root"
mkdir -p "$root/opt" "$root/DEBIAN" "$root/etc/uprmc" "$root/usr/bin" "$root/usr/lib/sysusers.d" \
    "$root/lib/systemd/system" "$root/usr/share/doc/uprmc"

# No links to a Python that another machine does not have; programs name the directory to come.
"$python" -m venv "$root/opt/uprmc"
"$root/opt/uprmc/bin/python" -m pip install --quiet --disable-pip-version-check "$wheel"
"$root/opt/uprmc/bin/python" -m pip uninstall --quiet --yes pip setuptools
rm -f "$root"/opt/uprmc/bin/[Aa]ctivate*
find "$root/opt/uprmc" -name __pycache__ -type d -prune -exec rm -rf {} +
grep -rlIF "$root" "$root/opt/uprmc" | xargs -r sed -i "s#$root##g"

run() { "$root/opt/uprmc/bin/python" -I -m uprmc "$@"; }
run settings --sample > "$root/etc/uprmc/uprmc.toml"
run manual --dir "$root/usr/share/man/man1" > /dev/null
gzip -9n "$root"/usr/share/man/man1/*.1
mkdir -p "$root/usr/share/bash-completion/completions" "$root/usr/share/zsh/vendor-completions" \
    "$root/usr/share/fish/vendor_completions.d"
run completion bash > "$root/usr/share/bash-completion/completions/uprmc"
run completion zsh > "$root/usr/share/zsh/vendor-completions/_uprmc"
run completion fish > "$root/usr/share/fish/vendor_completions.d/uprmc.fish"
find "$root/opt/uprmc" -name __pycache__ -type d -prune -exec rm -rf {} +

ln -s ../../opt/uprmc/bin/uprmc "$root/usr/bin/uprmc"
install -m 644 "$here/uprmc.service" "$root/lib/systemd/system/uprmc.service"
install -m 644 "$here/uprmc.sysusers" "$root/usr/lib/sysusers.d/uprmc.conf"
install -d "$root/usr/share/doc/uprmc/monitoring"
install -m 644 "$here"/monitoring/* "$root/usr/share/doc/uprmc/monitoring/"
install -m 644 "$here/../LICENSE" "$root/usr/share/doc/uprmc/copyright"
echo /etc/uprmc/uprmc.toml > "$root/DEBIAN/conffiles"
cat > "$root/DEBIAN/control" <<END
Package: uprmc
Version: $version
Architecture: $arch
Maintainer: uprmc developers <uprmc@localhost>
Depends: python3 (>= $minor), python3 (<< ${minor%.*}.$((${minor#*.} + 1))), libc6
Recommends: systemd
Section: database
Priority: optional
Installed-Size: $(du -sk "$root" | cut -f 1)
Description: memcached-compatible server that keeps its data on disk
 It answers memcached's clients, stores documents in LMDB, and streams every
 change to replicas, indexes and backups.
END
cat > "$root/DEBIAN/postinst" <<'END'
#!/bin/sh
set -e
if [ "$1" = configure ] && [ -d /run/systemd/system ]; then
    systemd-sysusers uprmc.conf
    systemctl daemon-reload
    [ -z "$2" ] || systemctl try-restart uprmc.service
fi
END
cat > "$root/DEBIAN/prerm" <<'END'
#!/bin/sh
set -e
if [ "$1" = remove ] && [ -d /run/systemd/system ]; then
    systemctl stop uprmc.service
fi
END
chmod 755 "$root/DEBIAN/postinst" "$root/DEBIAN/prerm"
chmod -R go-w,a+rX "$root"
mkdir -p dist
dpkg-deb --root-owner-group --build "$root" "dist/uprmc_${version}_${arch}.deb" >&2
echo "dist/uprmc_${version}_${arch}.deb"
