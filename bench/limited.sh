#!/bin/busybox sh
# In a guest, runs programs under memory limits and prints a line of counts for each run. A line of
# /work/asked: program, memory sizes in percent of its anonymous pages (50,75), runs at each, command.

root=/sys/fs/cgroup
group=$root/limited
echo +memory >$root/cgroup.subtree_control
echo 0 >/proc/sys/vm/page-cluster
echo 200 >/proc/sys/vm/swappiness
echo "lists $(cat /sys/kernel/mm/lru_gen/enabled)"
echo "kernel $(uname -r)"

# Sets the variables anon, kernel, file and pgmajfault from the group's memory.stat.
statistics() {
  while read -r name value; do
    case $name in anon | kernel | file | pgmajfault) eval "$name=$value" ;; esac
  done <$group/memory.stat
}

# limited LIMIT POLL COMMAND...: runs the command under a limit in bytes, or "max". With POLL 1 this
# shell reads memory.stat meanwhile: multi-generational LRU skips a process that is not switched to.
# Sets code, killed, the statistics at the end, and with POLL 1 the peaks most_anon and most_kernel.
limited() {
  limit=$1 poll=$2
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
  while [ "$poll" = 1 ] && [ ! -e /tmp/code ]; do
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
  pages=$((most_anon / 4096)) peak_kernel=$most_kernel
  echo "free $program $code $pages $peak_kernel"
  for part in $(echo "$parts" | tr , ' '); do
    frames=$((pages * part / 100))
    for run in $(seq "$runs"); do
      for poll in 1 0; do
        limited $((frames * 4096 + peak_kernel)) $poll "$@"
        echo "run $program $part $frames $poll $code $killed $pgmajfault $file"
      done
    done
  done
done </work/asked
echo done
