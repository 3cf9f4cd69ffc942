# Sourced by the scripts that install system packages, on Debian and Ubuntu.

as_root() { # run a command as root: we are, or through sudo
  if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi
}

# As root, or through sudo; fails where there is no apt. A mirror can hiccup, so it is asked three times. Scripts that
# run side by side wait for each other: `apt-get update` would fail beside another.
install_system_packages() {
  command -v apt-get >/dev/null || return 1
  echo "${0##*/}: installing $* with apt-get" >&2
  for pause in 5 15 0; do
    # shellcheck disable=SC2016 # expanded by the inner shell
    as_root env DEBIAN_FRONTEND=noninteractive flock /var/lib/apt sh -c '
      apt-get update -qq &&
        apt-get install -y -qq --no-install-recommends -o DPkg::Lock::Timeout=120 "$@"' sh "$@" >/dev/null && return
    sleep "$pause"
  done
  return 1
}
