#!/bin/busybox sh
# laps.sh LAPS, in a guest: runs /work/job LAPS times, each between lines "begin" and "end", at which the
# host reads counters. The pauses give it time to do so before the job starts, and before the next lap.

for lap in $(seq "$1"); do
  echo begin
  sleep 0.5
  sh /work/job >/dev/null 2>&1 || exit
  echo end
  sleep 0.5
done
