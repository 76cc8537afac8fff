#!/usr/bin/env bash
# Makes a Debian package or an archive of a build; the same build gives the same bytes.
#   tools/package.sh deb build/cpu build/package
#   tools/package.sh archive build/release build/package
# The package has the binary, espalier.service, its settings and a man page; the archive also the attention library.
set -euo pipefail
kind=$1
build=$(realpath "$2")
mkdir -p "$3"
out=$(realpath "$3")
version=$(sed -n 's/.*ESPALIER_VERSION "\(.*\)"/\1/p' include/espalier/version.hpp)
architecture=$(dpkg --print-architecture)
# Of the commit, or of the changelog where there is none.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2> /dev/null || stat -c %Y CHANGELOG.md)}
export SOURCE_DATE_EPOCH
umask 022
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT

# install_files ROOT PREFIX: what both have beside what CMake installs.
install_files() {
    local share=$1$2/share
    install -Dm644 deploy/espalier.service "$1$2/lib/systemd/system/espalier.service"
    install -Dm644 -t "$share/doc/espalier" README.md docs/server.md docs/flags.md docs/deploy.md
    install -Dm644 -t "$share/doc/espalier/examples" deploy/prometheus.yml deploy/alerts.yml deploy/grafana.json deploy/kubernetes.yaml deploy/haproxy.cfg
    install -d "$share/man/man1"
    tools/make_man_page.sh "$build/espalier" | gzip -9n > "$share/man/man1/espalier.1.gz"
}

make_deb() {
    local root=$stage/deb
    DESTDIR=$root cmake --install "$build" --prefix /usr --component runtime --strip > /dev/null
    install_files "$root" /usr
    install -Dm644 deploy/serve.conf "$root/etc/espalier/serve.conf"
    install -Dm600 deploy/espalier.default "$root/etc/default/espalier"
    install -Dm644 deploy/debian/copyright "$root/usr/share/doc/espalier/copyright"
    gzip -9n < CHANGELOG.md > "$root/usr/share/doc/espalier/changelog.gz"
    install -d "$root/DEBIAN"
    install -m755 -t "$root/DEBIAN" deploy/debian/postinst deploy/debian/prerm deploy/debian/postrm
    printf '/etc/espalier/serve.conf\n/etc/default/espalier\n' > "$root/DEBIAN/conffiles"
    (cd "$root" && find usr etc -type f -print0 | sort -z | xargs -0 md5sum) > "$root/DEBIAN/md5sums"
    local size depends
    size=$(du -ks --exclude=DEBIAN "$root" | cut -f1)
    mkdir -p "$stage/shlibs/debian"
    printf 'Source: espalier\n\nPackage: espalier\nArchitecture: any\n' > "$stage/shlibs/debian/control"
    depends=$(cd "$stage/shlibs" && dpkg-shlibdeps -O "$root/usr/bin/espalier" | sed -n 's/^shlibs:Depends=//p')
    sed -e "s/@VERSION@/$version/" -e "s/@ARCHITECTURE@/$architecture/" -e "s/@DEPENDS@/$depends/" -e "s/@SIZE@/$size/" \
        deploy/debian/control.in > "$root/DEBIAN/control"
    dpkg-deb --root-owner-group -Zxz --build "$root" "$out/espalier_${version}_$architecture.deb" > /dev/null
}

make_archive() {
    local name=espalier-$version-linux-$(uname -m)
    cmake --install "$build" --prefix "$stage/$name" --strip > /dev/null
    install_files "$stage/$name" ""
    install -Dm644 deploy/serve.conf "$stage/$name/etc/espalier/serve.conf"
    install -m644 LICENSE deploy/debian/copyright "$stage/$name"
    tar -C "$stage" --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner -c "$name" \
        | xz -T0 -9 > "$out/$name.tar.xz"
}

"make_$kind"
ls -l "$out"
