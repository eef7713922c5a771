# Sourced by the scripts: installs what a bare Debian lacks, or says in one sentence what is missing.

apt_updated=""

# need_command NAME SENTENCE: fails with the sentence when the command is missing.
need_command() {
  command -v "$1" >/dev/null || { echo "$2" >&2; exit 78; }
}

# try_debian PACKAGE...: installs Debian packages when we may; says nothing when it works.
try_debian() {
  [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || return 1
  [ -n "$apt_updated" ] || { apt-get update -qq >/dev/null 2>&1; apt_updated=1; }
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "$@" >/dev/null 2>&1
}

# need_debian COMMAND PACKAGE: makes the command available or fails.
need_debian() {
  command -v "$1" >/dev/null || try_debian "$2" || { echo "$1 is missing: apt-get install $2" >&2; exit 78; }
}

# need_debian_optional COMMAND PACKAGE: the same, but goes on without.
need_debian_optional() {
  command -v "$1" >/dev/null || try_debian "$2" || echo "note: $1 is not installed (apt-get install $2)"
}

cache="${ODRADEK_CACHE:-$HOME/.cache/odradek}"

# need_venv NAME REQUIREMENTS: a Python environment with pinned packages.
need_venv() {
  local venv="$cache/venv/$1" want
  want="$(sha256sum <"$2")"
  [ "$(cat "$venv/installed" 2>/dev/null)" = "$want" ] && return
  python3 -m venv --clear "$venv" && "$venv/bin/pip" -q --disable-pip-version-check install -r "$2" || exit 78
  echo "$want" >"$venv/installed"
}

# need_node_modules PACKAGE_JSON: npm packages at the versions it pins.
need_node_modules() {
  local where="$cache/node" want
  want="$(sha256sum <"$1")"
  [ "$(cat "$where/installed" 2>/dev/null)" = "$want" ] && return
  mkdir -p "$where" && cp "$1" "$where/" && npm --prefix "$where" install --silent --no-fund --no-audit || exit 78
  echo "$want" >"$where/installed"
}
