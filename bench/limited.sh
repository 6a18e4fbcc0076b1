#!/bin/busybox sh
# Programs under memory limits, in a guest: prints a line of counts for each run. /work/asked has lines
# of name, parts of memory in percent, runs of each, command; files lie where the command names them.

root=/sys/fs/cgroup
group=$root/limited
echo +memory >$root/cgroup.subtree_control
echo 0 >/proc/sys/vm/page-cluster
echo 200 >/proc/sys/vm/swappiness
echo "lists $(cat /sys/kernel/mm/lru_gen/enabled)"
echo "kernel $(uname -r)"

# Sets what memory.stat says of the group, by name.
statistics() {
  while read -r name value; do
    case $name in anon | kernel | file | pgmajfault) eval "$name=$value" ;; esac
  done <$group/memory.stat
}

# limited LIMIT BESIDE COMMAND...: with BESIDE 1 this shell runs beside it, so that the kernel switches
# between the two. Sets code, killed, the statistics at the end, and with BESIDE most_anon, most_kernel.
limited() {
  limit=$1 beside=$2
  shift 2
  mkdir $group
  echo "$limit" >$group/memory.max
  rm -f /tmp/code
  {
    (
      echo 0 >$group/cgroup.procs
      exec env -i LC_ALL=C PATH=/usr/bin:/bin "$@"
    ) >/dev/null 2>&1
    echo $? >/tmp/code
  } &
  most_anon=0 most_kernel=0
  while [ "$beside" = 1 ] && [ ! -e /tmp/code ]; do
    statistics
    [ "$anon" -le $most_anon ] || most_anon=$anon
    [ "$kernel" -le $most_kernel ] || most_kernel=$kernel
  done
  wait
  statistics
  read -r code </tmp/code
  while read -r name value; do [ "$name" != oom_kill ] || killed=$value; done <$group/memory.events
  rmdir $group
}

while read -r program parts runs command; do
  eval "set -- $command"
  limited max 1 "$@"
  frames=$((most_anon / 4096)) own=$most_kernel
  echo "free $program $code $frames $own"
  for part in $(echo "$parts" | tr , ' '); do
    held=$((frames * part / 100))
    for run in $(seq "$runs"); do
      for beside in 1 0; do
        limited $((held * 4096 + own)) $beside "$@"
        echo "run $program $part $held $beside $code $killed $pgmajfault $file"
      done
    done
  done
done </work/asked
echo done
