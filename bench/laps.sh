#!/bin/busybox sh
# /work/job again and again, in a guest, so many times: each lap is between two marks, at which the
# host counts. It stops the guest at the first, and has a moment to see the second.

for lap in $(seq "$1"); do
  echo begin
  sleep 0.5
  sh /work/job >/dev/null 2>&1 || exit
  echo end
  sleep 0.5
done
