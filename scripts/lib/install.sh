# Sourced by the scripts: installs what a bare Debian lacks, or says in one sentence what is missing.

apt_updated=""
cache="${ODRADEK_CACHE:-$HOME/.cache/odradek}"

# fail SENTENCE: the machine does not allow what was asked for.
fail() { echo "$1" >&2; exit 78; }

# need_cargo: Debian's own is often too old, and nothing here can replace it.
need_cargo() {
  command -v cargo >/dev/null || fail "Rust is missing: install $(grep rust-version Cargo.toml | tr -d '"') or newer (https://rustup.rs)"
  need_debian cc gcc libc6-dev
}

# try_debian PACKAGE...: installs Debian packages when we may; says nothing when it works.
try_debian() {
  [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || return 1
  [ -n "$apt_updated" ] || { apt-get update -qq >/dev/null 2>&1 || true; apt_updated=1; }
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "$@" >/dev/null 2>&1
}

# has_debian COMMAND PACKAGE...: whether the command is there, if need be after an installation.
has_debian() {
  command -v "$1" >/dev/null || { try_debian "${@:2}" && command -v "$1" >/dev/null; }
}

# need_debian COMMAND PACKAGE...: makes the command available or fails.
need_debian() { has_debian "$@" || fail "$1 is missing: apt-get install ${*:2}"; }

# want_debian COMMAND PACKAGE...: the same, but goes on without.
want_debian() { has_debian "$@" || echo "note: $1 is missing (apt-get install ${*:2})"; }

# is_installed DIRECTORY FILE...: whether the directory was filled from files with this very content.
is_installed() { [ "$(cat "$1/installed" 2>/dev/null)" = "$(cat "${@:2}" | sha256sum)" ]; }
mark_installed() { cat "${@:2}" | sha256sum >"$1/installed"; }

# need_venv NAME REQUIREMENTS: a Python environment with pinned packages.
need_venv() {
  local venv="$cache/venv/$1"
  is_installed "$venv" "$2" && return
  python3 -c 'import venv, ensurepip' 2>/dev/null || try_debian python3 python3-venv ||
    fail "python3 with venv is missing: apt-get install python3-venv"
  python3 -m venv --clear "$venv" && "$venv/bin/pip" -q --disable-pip-version-check install --no-deps -r "$2" ||
    fail "the Python clients of $2 could not be installed"
  mark_installed "$venv" "$2"
}

# need_node_modules DIRECTORY: npm packages at the versions that its package-lock.json pins.
need_node_modules() {
  local where="$cache/node"
  is_installed "$where" "$1/package.json" "$1/package-lock.json" && return
  need_debian npm npm
  mkdir -p "$where" && cp "$1/package.json" "$1/package-lock.json" "$where/" &&
    npm --prefix "$where" ci --silent --no-fund --no-audit || fail "the node clients could not be installed"
  mark_installed "$where" "$1/package.json" "$1/package-lock.json"
}
