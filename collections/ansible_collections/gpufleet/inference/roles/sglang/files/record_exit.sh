#!/bin/sh
# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
#
# record_exit.sh STATE_DIR UNIT LOG
#
# systemd runs this after each end of the service (ExecStopPost=), while the control group still exists. It keeps in
# STATE_DIR/exits what is gone a moment later: how the server ended, whether somebody asked for it, what it left behind,
# the last lines of its log and of the kernel's. A stop must neither fail nor wait for it: errors are ignored, the unit bounds
# its time, and a shell and the basic tools are all it needs, so that a broken engine or Python does not matter.

exec </dev/null >/dev/null 2>&1
unset LD_PRELOAD LD_LIBRARY_PATH
PATH=/usr/sbin:/usr/bin:/sbin:/bin
LC_ALL=C
export PATH LC_ALL
umask 077

exits=$1/exits
unit=$2
log=$3
keep=10
log_bytes=65536
kernel_bytes=16384
free_kib=65536

mkdir -p "$exits" || exit 0
rm -f "$exits"/.*.new
free=$(df -Pk "$exits" | tail -n 1 | sed 's/.* \([0-9][0-9]*\)  *[0-9][0-9]*% .*/\1/')
[ "${free:-0}" -gt "$free_kib" ] 2>/dev/null || exit 0

now=$(date +%s)
file=$exits/$now-$$.exit
new=$exits/.$now-$$.new

first_line() { # the first line of a file, nothing if it can not be read
    [ -r "$1" ] && IFS= read -r line <"$1" && printf '%s' "$line"
}

mask() {
    sed -e 's/\([Aa][Pp][Ii][-_]*[Kk][Ee][Yy][]"'\'']*[ =:,]*["'\'']*\)[^"'\'' ,)}]\{5,\}/\1<redacted>/g' \
        -e 's/\(-[-a-z]*[-_]\(key\|token\|password\)[ =]["'\'']*\)[^"'\'' ,)}]\{5,\}/\1<redacted>/g' \
        -e 's/\([Bb][Ee][Aa][Rr][Ee][Rr] \)[A-Za-z0-9._~+/=-]\{6,\}/\1<redacted>/g' \
        -e 's/\(hf\|api_org\)_[A-Za-z0-9]\{16,\}/<redacted>/g'
}

# On a stop that somebody asked for a job runs; a server that ended by itself has none.
shown=$(timeout 3 systemctl show "$unit" --property=Id,Job,NRestarts,ExecMainPID)
case $shown in
    *Job=[1-9]*) asked=yes ;;
    *Id=*) asked=no ;;
    *) asked=unknown ;;
esac

group='' memory=''
while IFS=: read -r number controllers path; do
    case $controllers in
        '')
            for base in /sys/fs/cgroup /sys/fs/cgroup/unified; do
                [ -r "$base$path/cgroup.procs" ] && group=$base$path
            done
            [ -r "$group/memory.current" ] && memory=$group
            ;;
        memory) memory=/sys/fs/cgroup/memory$path ;;
    esac
done </proc/self/cgroup

# What is left in the control group besides this script and its parent; what listed them is gone by then.
left='' count=0
for pid in $(head -n 64 "$group/cgroup.procs"); do
    [ "$pid" = $$ ] || [ "$pid" = "$PPID" ] || [ ! -r "/proc/$pid/status" ] && continue
    name='' state='' resident=''
    while read -r key value _; do
        case $key in
            Name:) name=$value ;;
            State:) state=$value ;;
            VmRSS:) resident=$value ;;
        esac
    done <"/proc/$pid/status"
    count=$((count + 1))
    left="$left$pid $state ${resident:-0} kB $name
"
done

oom_kills=$(sed -n 's/^oom_kill \([0-9]*\)$/\1/p' "$memory/memory.events" "$memory/memory.oom_control" | head -n 1)

{
    printf 'at=%s\nunit=%s\nresult=%s\ncode=%s\nstatus=%s\n' "$now" "$unit" "$SERVICE_RESULT" "$EXIT_CODE" "$EXIT_STATUS"
    printf 'asked=%s\ninvocation=%s\nboot_id=%s\n' "$asked" "$INVOCATION_ID" "$(first_line /proc/sys/kernel/random/boot_id)"
    printf 'left=%s\noom_kills=%s\n' "$count" "$oom_kills"
    printf 'memory_peak=%s\n' "$(first_line "$memory/memory.peak" || first_line "$memory/memory.max_usage_in_bytes")"
} >"$new" && mv -f "$new" "$file" || exit 0

{
    cat "$file"
    printf '\n[systemd]\n%s\n' "$shown"
    printf '\n[processes left]\n%s\n' "$left"
    printf '\n[memory]\n'
    head -n 40 "$memory/memory.current" "$memory/memory.events" "$memory/memory.oom_control"
    head -n 3 /proc/meminfo
    printf '\n[kernel]\n'
    dmesg | tail -n 100 | tail -c "$kernel_bytes"
    printf '\n[log]\n'
    [ -f "$log" ] && tail -c "$log_bytes" "$log" | mask
} >"$new"
mv -f "$new" "$file"

set -- "$exits"/*.exit
while [ $# -gt "$keep" ]; do
    rm -f "$1"
    shift
done
exit 0
