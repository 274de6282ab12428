#!/bin/sh
# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
#
# Runs once, inside the new tree: an ordinary user with sudo, ssh by key only, a journal that is kept.
set -eu

useradd --create-home --shell /bin/bash ops
passwd --lock root
echo 'ops ALL=(ALL:ALL) NOPASSWD: ALL' >/etc/sudoers.d/ops
chmod 0440 /etc/sudoers.d/ops

cat >/etc/ssh/sshd_config.d/fleet.conf <<'END'
PermitRootLogin no
PasswordAuthentication no
AuthenticationMethods publickey
UseDNS no
END
# Each host makes its own at its first boot.
rm -f /etc/ssh/ssh_host_*_key*

mkdir -p /etc/systemd/journald.conf.d /var/log/journal
cat >/etc/systemd/journald.conf.d/fleet.conf <<'END'
[Journal]
Storage=persistent
ReadKMsg=no
END

# Nothing here has a console, disks of its own or a package mirror.
systemctl set-default multi-user.target
systemctl mask console-getty.service getty.target getty-static.service apt-daily.timer apt-daily-upgrade.timer \
    dpkg-db-backup.timer e2scrub_all.timer e2scrub_reap.service fstrim.timer systemd-logind-varlink.socket 2>/dev/null

: >/etc/machine-id
rm -f /var/lib/dbus/machine-id
