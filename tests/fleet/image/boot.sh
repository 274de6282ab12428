#!/bin/sh
# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
#
# The first process of a host. What it would share with the machine under it, it gets for itself: a boot id and a kernel log.
# It must not change the machine: no kernel settings, no disks.
set -eu
umask 077
mount -o remount,rw /  # the last shutdown has left it read-only
mount --bind /proc/sys /proc/sys
mount -o remount,bind,ro /proc/sys
mount -o remount,bind,ro /sys
cat /proc/sys/kernel/random/uuid >/run/boot-id
chmod 0444 /run/boot-id
mount --bind /run/boot-id /proc/sys/kernel/random/boot_id
find /dev -type b -exec rm -f {} +
rm -f /dev/kmsg /dev/mem /dev/port
: >/run/kernel.log
ssh-keygen -A >/dev/null
umask 022
exec /sbin/init
