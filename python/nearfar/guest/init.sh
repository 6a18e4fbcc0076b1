#!/bin/busybox sh
# The first process of a guest: sets it up, runs the command, returns the files of /out to the host, and
# powers off. The host has written settings, the command and modules to /nearfar.

busybox=/bin/busybox
$busybox mkdir -p /proc /sys /dev /run /tmp /work /out /nearfar/bin
$busybox mount -t proc proc /proc
$busybox mount -t sysfs sysfs /sys
$busybox mount -t devtmpfs devtmpfs /dev
$busybox mount -t tmpfs -o mode=1777 tmpfs /tmp
$busybox mount -t cgroup2 cgroup2 /sys/fs/cgroup
$busybox --install -s /nearfar/bin
# Programs of packages take precedence over those of busybox.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/usr/games:/nearfar/bin
export HOME=/root LC_ALL=C.UTF-8 TZ=UTC

fail() {
  echo "nearfar: $*" >/dev/console
  poweroff -f
}

# Do what the scripts of packages, which do not run, would do.
for lib in /usr/lib/*-linux-gnu; do
  schemas=$lib/glib-2.0/glib-compile-schemas loaders=$lib/gdk-pixbuf-2.0/gdk-pixbuf-query-loaders
  [ ! -x "$schemas" ] || "$schemas" /usr/share/glib-2.0/schemas
  [ ! -x "$loaders" ] || "$loaders" --update-cache
  for library in "$lib"/blas/*.so.3 "$lib"/lapack/*.so.3; do
    [ ! -e "$library" ] || ln -s "$library" "$lib"
  done
done
[ ! -x /usr/bin/update-mime-database ] || update-mime-database /usr/share/mime
[ ! -x /usr/bin/fc-cache ] || fc-cache
for program in /usr/bin/*-im6.q16; do
  [ ! -e "$program" ] || ln -s "$program" "${program%-im6.q16}"
done

. /nearfar/settings
for module in /nearfar/modules/*; do
  [ ! -e "$module" ] || insmod "$module" || fail "module ${module##*/} does not load"
done
for port in /sys/class/virtio-ports/*; do
  read -r name <"$port/name"
  eval "port_$name=/dev/${port##*/}"
done
if [ -n "$port_nearfar" ]; then
  # `nearfar capture` records the command: send it the kernel's addresses, then mark start and stop.
  exec 6<>"$port_nearfar"
  sed -n 's/^ *\([0-9a-f]*-[0-9a-f]* : Kernel .*\)/region \1/p' /proc/iomem >&6
  if [ -n "$tasks" ]; then
    for name in __switch_to pcpu_hot current_task __entry_task; do
      sed -n "s/ . $name\$/ $name/p" /proc/kallsyms | sed 's/^/symbol /' >&6
    done
    echo "btf $(stat -c %s /sys/kernel/btf/vmlinux)" >&6
    cat /sys/kernel/btf/vmlinux >&6
  fi
  cd /work
  echo start >&6
  read -r _ <&6
  sh /nearfar/command </dev/null 6>&-
  echo "stop $?" >&6
  read -r _ <&6
  poweroff -f
fi
exec 3>"$port_output" 4>"$port_error" 5>"$port_result"
if [ -n "$zram" ]; then
  echo "$zram" >/sys/block/zram0/disksize && mkswap /dev/zram0 >/dev/null &&
    swapon /dev/zram0 || fail "no swap on zram"
fi
ip link set lo up
cd /work

echo begin >&5
sh /nearfar/command </dev/null >&3 2>&4 3>&- 4>&- 5>&-
echo "exit $?" >&5
tar -c -f "$port_files" -C /out . || fail "the files in /out cannot be archived"
echo end >&5
poweroff -f
