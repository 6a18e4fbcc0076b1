#!/bin/busybox sh
# In a guest with persistent memory (NFIT): makes a device of each region, and runs /work/online, which
# makes the devices system memory. For each line of /work/sizes (a number of pages, a command prefix),
# makes the kernel allocate pages for itself, under the prefix. Then runs /work/allocate.
#
# The kernel's allocation is the table of a zram device, which has a fixed number of bytes for each page
# of the device (vzalloc). /proc/vmallocinfo shows the nodes of its pages.

zram=/sys/block/zram0
for region in /sys/bus/nd/devices/region*; do
  [ -e "$region" ] || continue
  ndctl create-namespace -f -e "namespace${region##*region}.0" -m devdax --map=mem >/dev/null || exit
done
sh /work/online >/tmp/online 2>&1 || { cat /tmp/online >&2; exit 1; }
# Minimal reserves, so that nodes can be filled.
for setting in min_free_kbytes=512 watermark_scale_factor=1 watermark_boost_factor=0 \
  percpu_pagelist_high_fraction=100000 "lowmem_reserve_ratio=2000 2000 2000 2000 2000"; do
  echo "${setting#*=}" >"/proc/sys/vm/${setting%%=*}"
done
# The OOM killer is to kill the process that allocates too much. Until this process has ended, the kernel
# kills spare processes; without any it would panic.
echo -1000 >/proc/self/oom_score_adj
for spare in $(seq 50); do
  sh -c "echo 900 >/proc/self/oom_score_adj; exec sleep 600" &
done

table() { awk -v "pages=pages=$1" '/disksize_store/ && index($0 " ", " " pages (pages == "pages=" ? "" : " "))' /proc/vmallocinfo; }
free() {
  cat /proc/sys/vm/stat_refresh
  awk '/^Node/ { node = $2 + 0; if (node > last) last = node }
    /pages free/ { free[node] += $3 } $1 == "count:" { free[node] += $2 }
    END { for (node = 0; node <= last; node++) printf "%d ", free[node] }' /proc/zoneinfo
}

echo 4G >$zram/disksize
entry=$(($(table "" | sed 's/.* pages=\([0-9]*\) .*/\1/' | sort -n | tail -n 1) / 256))
echo 1 >$zram/reset
while read -r pages words; do
  echo "@@vmalloc $pages $words"
  echo "@@vfree $(free)"
  size=$((pages * 4096 / entry * 4096))
  # Run on the first processor, which is on node 0.
  taskset 1 $words sh -c "echo 1000 >/proc/self/oom_score_adj; echo $size >$zram/disksize" 2>/dev/null
  echo "@@vlanded $(table "$pages" | sed 's/.*vpages//')"
  echo 1 >$zram/reset
done </work/sizes
grep -E "^Node|managed" /proc/zoneinfo | paste - - | awk '$6 > 0 { print "@@zone", $2 + 0, $4, $6 }'
exec /work/allocate
