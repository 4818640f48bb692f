#!/bin/sh
# Gives the module another path, in one commit: its packages, its nested modules,
# and everything that names them. Usage: module-path.sh HOST/OWNER/NAME
set -eu
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export PATH
new=${1-}
if ! printf '%s\n' "$new" | grep -Eq '^[a-z0-9-]+(\.[a-z0-9-]+)+(/[A-Za-z0-9._-]+)+$'; then
  echo "module path must be HOST/OWNER/NAME, such as git.example.com/me/northstar (got \"$new\")" >&2
  exit 2
fi
if [ -n "$(git status --porcelain)" ]; then
  echo 'the work tree has changes: commit them first, so that the new path is a commit of its own' >&2
  exit 1
fi
old=$(sed -n 's/^module //p' go.mod)
pattern=$(printf '%s' "$old" | sed 's/[.]/\\./g')
# A package is a string that begins with the module's path and one of these directories.
dirs=$(git ls-files '*/*.go' | cut -d/ -f1 | sort -u | paste -sd'|')
git ls-files '*.go' '*.patch' | tr '\n' '\0' |
  xargs -0 sed -i -E "s#\"$pattern/($dirs)([/\"])#\"$new/\\1\\2#g"
# Nested modules are below the path, and may require the main module.
git ls-files 'go.mod' '*/go.mod' | tr '\n' '\0' |
  xargs -0 sed -i -E "s#^(module |require |replace |	)$pattern(/| |\$)#\\1$new\\2#"
sed -i "s#-X $pattern/#-X $new/#g" Makefile
git commit -q -a -m "the module's path is $new

Its packages can be fetched from there, once the repository is published."
git log -1 --format='%h %s'
