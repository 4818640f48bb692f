#!/bin/sh
# Makes the user of the unit, and lets it read its configuration. A running node
# is not restarted: the order of an upgrade is the operator's (docs/upgrade.md).
set -e
root="${DPKG_ROOT:-}"

if command -v systemd-sysusers >/dev/null 2>&1; then
  systemd-sysusers ${root:+"--root=$root"} northstar.conf
elif ! grep -q '^northstar:' "$root/etc/passwd"; then
  useradd ${root:+--prefix "$root"} --system --home-dir /var/lib/northstar --shell /usr/sbin/nologin northstar
fi
# By number: with a root directory of its own, names are those of another system.
gid=$(sed -n 's/^northstar:[^:]*:\([0-9]*\):.*/\1/p' "$root/etc/group")
chgrp "$gid" "$root/etc/northstar"
if [ -e "$root/etc/northstar/northstar.toml" ]; then # an upgrade does not bring back a removed one
  chgrp "$gid" "$root/etc/northstar/northstar.toml"
fi

if [ -z "$root" ] && [ -d /run/systemd/system ]; then
  systemctl daemon-reload
fi
