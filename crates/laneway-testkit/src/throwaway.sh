# Watches over a throwaway server: runs what the test process orders, and cleans up when that process is gone.
#
# $1 the directory's name without its random end, $2 the command that stops the server.
# Orders come as lines on standard input, answers go as lines to standard output. The end of the input means that
# the test process has ended, in whatever way: the server is stopped and its directory removed.

trap : HUP INT TERM # a signal ends the `read` below, and so leads to the clean-up as well
directory=$(mktemp -d "$1.XXXXXX") || exit 1
cd "$directory" || exit 1
echo "$directory"

while read -r order; do
    if eval "$order" >>orders.log 2>&1 </dev/null; then echo done; else echo failed; fi
done

eval "$2" >>orders.log 2>&1 </dev/null
cd /
rm -rf "$directory"
