#!/bin/sh
# Stops the node when the package is removed, and not when it is upgraded: deb
# passes "remove" or "upgrade", rpm the number of versions that stay.
set -e
case "$1" in
remove | 0)
  if [ -z "${DPKG_ROOT:-}" ] && [ -d /run/systemd/system ]; then
    systemctl disable --now northstar.service || true
  fi
  ;;
esac
