# Sourced by the set-up scripts: Debian's packages of any release and any architecture, fetched and unpacked, never installed.
#
# The caller sets `suites` (releases, best first), `architectures` (what the lists are read for, the first is the native one of
# what is resolved) and defines `say` and `die`. It gets `work`, a folder that is gone when the caller ends.

keyring=/usr/share/keyrings/debian-archive-keyring.gpg
mirror=${DEBIAN_MIRROR:-$(awk '/^URIs:.*\/debian\/?$/ { print $2; exit }' /etc/apt/sources.list.d/debian.sources 2>/dev/null || true)}
mirror=${mirror:-http://deb.debian.org/debian}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# install PACKAGE...: the distribution's own, the only thing that needs root.
install_packages() {
    [ $# = 0 ] && return
    [ "$(id -u)" = 0 ] || die "missing packages; as root: apt-get install --no-install-recommends $*"
    say "installing $*"
    apt-get -qq update
    DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends "$@" >/dev/null
}

# ---- a private apt, which sees the packages of $suite and installs nothing ----------------------------------------

# The release whose lists were read, and for which architectures.
suite=
listed=
# lists RELEASE: reads its lists, or fails.
lists() {
    rm -rf "$work"/etc "$work"/lists
    mkdir -p "$work"/etc/{sources,preferences,apt.conf.d} "$work"/lists/partial "$work"/cache/archives/partial
    : >"$work/status"
    cat >"$work/etc/sources/debian.sources" <<END
Types: deb
URIs: $mirror
Suites: $1
Components: main
Architectures: $architectures
Signed-By: $keyring
END
    cat >"$work/apt.conf" <<END
Dir::Etc "$work/etc"; Dir::Etc::sourcelist "/dev/null"; Dir::Etc::sourceparts "$work/etc/sources";
Dir::Etc::preferencesparts "$work/etc/preferences"; Dir::Etc::parts "$work/etc/apt.conf.d";
Dir::State "$work"; Dir::State::lists "$work/lists"; Dir::State::status "$work/status"; Dir::Cache "$work/cache";
APT::Architecture "${architectures%% *}"; APT::Architectures { $(printf '"%s"; ' $architectures)};
APT::Sandbox::User "root"; APT::Install-Recommends "false";
Acquire::Check-Valid-Until "false"; Acquire::Check-Date "false"; Acquire::Languages "none"; Acquire::Retries "3";
END
    APT_CONFIG="$work/apt.conf" apt-get -qq update
}
private_apt() { APT_CONFIG="$work/apt.conf" "$@"; }

# from_a_release STEP ARGUMENT...: does the step with the first release that has all it needs. A mirror that is being brought up to
# date has lists that name what is not there; those of another release may.
from_a_release() {
    local release
    for release in $suites; do
        if [ "$suite" != "$release" ] || [ "$listed" != "$architectures" ]; then
            suite=
            lists "$release" || { say "$mirror does not serve $release"; continue; }
            suite=$release listed=$architectures
        fi
        if "$@"; then return; fi
        say "$release does not have all of it"
    done
    die "$mirror has it in none of: $suites"
}

# fetch FOLDER PACKAGE...: the packages alone, without what they depend on.
fetch() {
    mkdir -p "$1"
    (cd "$1" && rm -f ./*.deb && shift && private_apt apt-get -qq download "$@")
}

# fetch_whole FOLDER PACKAGE...: the packages and all that they depend on.
fetch_whole() {
    local into=$1
    shift
    rm -f "$work"/cache/archives/*.deb
    private_apt apt-get -qq install -y --download-only "$@" >/dev/null || return
    rm -rf "$into" && mkdir -p "$into" && mv "$work"/cache/archives/*.deb "$into"
}

# unpack FOLDER DEB...: programs, libraries and headers, without documentation and settings.
unpack() {
    local into=$1 deb
    shift
    mkdir -p "$into"
    for deb in "$@"; do
        dpkg-deb --fsys-tarfile "$deb" | tar -x -C "$into" --keep-directory-symlink \
            --exclude='./usr/share/*' --exclude='./etc/*' --exclude='./var/*' --exclude='*/gconv/*'
    done
}
